"""Microsoft Presidio as one more finder of spans; the extra ``privacy`` brings it.

Without a spaCy pipeline of the operator's its patterns, checksums and context words work on plain words, so that no
model is fetched: spaCy's are not on PyPI, and nothing here downloads anything. Names of people and places need one.
"""

from __future__ import annotations

from typing import Any

from clawrl.privacy.config import PresidioConfig
from clawrl.privacy.rules import Span

_PLAIN_WORDS = "clawrl_plain_words"


class PresidioFinder:
    """Raises `ValueError` with the remedy where Presidio or the pipeline is not installed. May be used by threads."""

    def __init__(self, config: PresidioConfig) -> None:
        try:
            from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
        except ImportError as error:
            raise ValueError(
                "redaction.presidio: presidio-analyzer is not installed; `pip install clawrl[privacy]`, or set null"
            ) from error
        _stay_offline()
        engine = _engine(config)
        registry = RecognizerRegistry(supported_languages=[config.language])
        registry.load_predefined_recognizers(languages=[config.language], nlp_engine=engine)
        self._config = config
        self._analyzer = AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=[config.language])
        known = set(self._analyzer.get_supported_entities(config.language))
        if unknown := sorted(set(config.entities) - known):
            raise ValueError(
                f"redaction.presidio.entities: {unknown[0]!r} is not known for language {config.language!r}"
                f"{'' if config.model else ' without a model'}; these are: {', '.join(sorted(known))}"
            )

    def find(self, text: str) -> list[Span]:
        config = self._config
        found = self._analyzer.analyze(
            text, config.language, entities=list(config.entities) or None, score_threshold=config.min_score
        )
        return [(result.start, result.end, result.entity_type) for result in found]


def _engine(config: PresidioConfig) -> Any:
    import spacy
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from spacy.language import Language

    if config.model is not None and not spacy.util.is_package(config.model):
        raise ValueError(f"redaction.presidio.model: the spaCy pipeline {config.model!r} is not installed; set null")
    if not Language.has_factory(_PLAIN_WORDS):

        @Language.component(_PLAIN_WORDS)
        def plain_words(doc: Any) -> Any:
            # Context words are compared with lemmas, which a pipeline without a model does not make.
            for token in doc:
                token.lemma_ = token.lower_
            return doc

    class Engine(SpacyNlpEngine):
        def load(self) -> None:
            if config.model is None:
                pipeline = spacy.blank(config.language)
                pipeline.add_pipe(_PLAIN_WORDS)
            else:
                pipeline = spacy.load(config.model)
            # A conversation may be longer than what spaCy takes at once by default.
            pipeline.max_length = 100_000_000
            self.nlp = {config.language: pipeline}  # type: ignore[assignment]

    engine = Engine(models=[{"lang_code": config.language, "model_name": config.model or "blank"}])
    engine.load()
    return engine


def _stay_offline() -> None:
    """Presidio checks the domains of addresses with a list that would be fetched; the one that is installed will do."""
    import tldextract
    from tldextract import tldextract as module

    module.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
