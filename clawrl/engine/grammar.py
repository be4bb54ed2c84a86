"""Answers that must be JSON of a schema: which tokens may come next, by llguidance.

`Grammars` belongs to a tokenizer and is dear to make (a second); a `Follower` belongs to one answer. Neither raises
while tokens are drawn, since that would end the answers of everybody else: what cannot go on may only end.
llguidance is imported with the first schema: an engine that only scores, or is measured, does without.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# As models are used to seeing JSON. Free whitespace would let a small one go on with it for ever.
_SPELLING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class SchemaRefused(ValueError):
    """No grammar can be made of a schema; the text says why."""


class Follower:
    """Follows one answer. ``mask`` must be given every token of it, in order, the known ones again each time."""

    def __init__(self, start: LLMatcher, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._start = start
        self._matcher = start.deep_copy()
        self._eos_ids = list(eos_ids)
        self._seen = 0
        self._words = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
        self._vocab_size = vocab_size

    def again(self, said: Sequence[int]) -> Follower:
        """Another one for the same schema, of an answer that has begun with ``said``; costs next to nothing."""
        other = Follower(self._start, self._vocab_size, self._eos_ids)
        if said:
            other._matcher.consume_tokens(list(said))
        return other

    def mask(self, ids: Sequence[int]) -> npt.NDArray[np.bool_]:
        """bool[V]: what may follow these tokens; never nothing."""
        from llguidance.numpy import fill_next_token_bitmask

        fresh = list(ids[self._seen :])
        self._seen = len(ids)
        if fresh and not self._matcher.is_stopped():
            self._matcher.consume_tokens(fresh)
        allowed = np.zeros(self._vocab_size, dtype=np.bool_)
        if not (self._matcher.is_error() or self._matcher.is_stopped()):
            fill_next_token_bitmask(self._matcher, self._words)
            allowed = np.unpackbits(self._words.view(np.uint8), bitorder="little")[: self._vocab_size].astype(np.bool_)
        if not allowed.any():
            allowed[self._eos_ids] = True
        return allowed


class Grammars:
    """What schemas mean in the tokens of ``tokenizer``; ``vocab_size`` is the model's, which may be larger."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._lock = threading.Lock()
        self._known: LLTokenizer | None = None

    def follower(self, schema: str) -> Follower:
        """For an answer that begins. May take long enough to be felt by others. Raises `SchemaRefused`."""
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, defaults=_SPELLING)
        except ValueError as error:
            raise SchemaRefused(str(error)) from None
        matcher = LLMatcher(self._tokens(), grammar, log_level=0)
        if matcher.is_error():
            raise SchemaRefused(matcher.get_error().splitlines()[0])
        return Follower(matcher, self._vocab_size, self._eos_ids)

    def _tokens(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer

        with self._lock:
            if self._known is None:
                self._known = from_tokenizer(self._tokenizer, n_vocab=self._vocab_size, eos_token=self._eos_ids)
            return self._known
