"""Put a question about a case to the judge model and collect several independent answers in words.

The whole prompt is one user message, since not every chat template knows a system role. Texts that do not fit
are shortened in the middle, the longest first, until the prompt leaves room for the answer. A question that leaves no
room for any case is refused at start.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable

import numpy as np
from transformers import PreTrainedTokenizerBase

from clawrl.engine.protocol import Engine, GenerateRequest
from clawrl.judging.errors import JudgeError
from clawrl.judging.text import shorten, transcript, without_reasoning
from clawrl.judging.trouble import name_of
from clawrl.messages import JudgeRequest, Message, SamplingParams, TokenIds, TurnId
from clawrl.serving.template import ChatRenderer

log = logging.getLogger(__name__)
_SHORTEST = 24
_MOST_CHARS_A_TOKEN = 8
_SHORTEST_CASE = JudgeRequest(turn_id=TurnId("none"), request=(), response="", evidence=())


class Asker:
    """Asks ``question(request, response, evidence)``; ``temperature`` and ``max_tokens`` are those of one answer.

    Raises `JudgeError` when the engine's context has no room for question and answer.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        question: Callable[[str, str, str], str],
        *,
        temperature: float,
        max_tokens: int,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._question = question
        # Whether a prompt fits is decided here, by what the answer needs.
        self._renderer = ChatRenderer(tokenizer, sys.maxsize)
        self._sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens)
        self._prompt(_SHORTEST_CASE)

    async def ask(self, case: JudgeRequest, times: int) -> list[str | None]:
        """``times`` answers; None where the generation failed.

        Raises `JudgeError` when none succeeded or the prompt cannot be made to fit.
        """
        request = GenerateRequest(
            request_id=f"judge-{uuid.uuid4().hex}",
            prompt_ids=np.asarray(self._prompt(case), dtype=np.int32),
            sampling=self._sampling,
        )
        results = await self._engine.sample(request, times)
        answers: list[str | None] = []
        for result in results:
            if isinstance(result, Exception):
                log.warning("a vote on turn %s failed: %s", case.turn_id, name_of(result))
            answers.append(None if isinstance(result, Exception) else self._text(request.prompt_ids, result))
        if all(answer is None for answer in answers):
            raise JudgeError(f"the judge model answered none of {times} times: {results[-1]}")
        return answers

    def _prompt(self, case: JudgeRequest) -> list[int]:
        texts = (
            transcript(case.request),
            without_reasoning(case.response) or "(no visible answer)",
            transcript(case.evidence),
        )
        context = self._engine.capabilities.context_length
        room = context - self._sampling.max_tokens
        limit = min(max(map(len, texts)), max(room, 0) * _MOST_CHARS_A_TOKEN)
        while True:
            request, response, evidence = (shorten(text, limit) for text in texts)
            ids = self._renderer.render([Message(role="user", content=self._question(request, response, evidence))])
            if len(ids) <= room:
                return ids
            if limit < _SHORTEST:
                break
            limit = int(limit * min(0.8, room / len(ids)))
        raise JudgeError(
            f"the judge's engine.context_length {context} leaves {room} tokens for the question beside max_tokens "
            f"{self._sampling.max_tokens}, which is too little; raise the one or lower the other"
        )

    def _text(self, prompt: TokenIds, ids: TokenIds) -> str:
        # Special tokens stay: some models mark their reasoning with them.
        text = str(self._tokenizer.decode(ids.tolist())).removesuffix(str(self._tokenizer.eos_token))
        # A template may open the reasoning itself, and the answer then only closes it.
        opened = str(self._tokenizer.decode(prompt[-16:].tolist())).rstrip().endswith("<think>")
        return f"<think>{text}" if opened else text
