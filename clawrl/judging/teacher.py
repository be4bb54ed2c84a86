"""The hinted teacher: how likely is the answer that was given, to a model that had read the hint beforehand?

The hint is added to the last message of the user, the prompt is rendered anew, and the response ids that were sampled
follow it unchanged: the teacher speaks of exactly the student's tokens, at the temperature that sampled them. A
target that is not exact is an error, never a number. Hints whose prompt does not fit the context are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from clawrl.engine.protocol import Engine, ScoreRequest, Scores
from clawrl.judging.splice import spliced
from clawrl.messages import Message, TeacherRequest, TeacherTargets, TokenIds
from clawrl.serving.errors import ApiError
from clawrl.serving.template import ChatRenderer


class TeacherError(RuntimeError):
    """The teacher has no exact targets for a request, or cannot be this policy's teacher at all."""


class Teacher:
    """``renderer`` is the one that made the policy's prompts; ``label`` introduces a hint; ``name`` is recorded.

    ``top_k`` best tokens are named per position (0: none).
    """

    def __init__(self, engine: Engine, renderer: ChatRenderer, *, top_k: int, label: str, name: str) -> None:
        self._engine = engine
        self._renderer = renderer
        self._top_k = top_k
        self._label = label
        self._name = name

    async def targets(self, request: TeacherRequest) -> TeacherTargets:
        """Log-probs of the response under each hint that fits. Raises `TeacherError`."""
        plain = self._plain_prompt(request)
        prompts, refusals = self._hinted_prompts(request, plain)
        if not prompts:
            raise TeacherError(f"turn {request.turn_id}: no hinted prompt fits the teacher: {'; '.join(refusals)}")
        scores = await self._engine.score(
            [
                ScoreRequest(
                    ids=np.concatenate([prompt, request.response_ids]).astype(np.int32),
                    start=len(prompt),
                    temperature=request.temperature,
                    top_k=self._top_k,
                )
                for prompt in prompts.values()
            ]
        )
        for found in scores:
            self._check_scores(request, found)
        versions = {found.version for found in scores}
        if len(versions) > 1:
            raise TeacherError(f"turn {request.turn_id}: the teacher's weights changed between two hints: {versions}")
        length = len(request.response_ids)
        none = np.empty((length, 0))
        return TeacherTargets(
            hints=tuple(prompts),
            logps=np.stack([found.logps for found in scores]).astype(np.float32),
            topk_ids=np.stack([none if s.topk_ids is None else s.topk_ids for s in scores]).astype(np.int32),
            topk_logps=np.stack([none if s.topk_logps is None else s.topk_logps for s in scores]).astype(np.float32),
            teacher=self._name,
            version=versions.pop(),
        )

    def _plain_prompt(self, request: TeacherRequest) -> list[int]:
        """The prompt as the template makes it, without a hint."""
        if not request.temperature > 0.0:
            raise TeacherError(f"turn {request.turn_id}: there are no log-probs at temperature {request.temperature}")
        try:
            return self._renderer.render(request.messages, request.inputs)
        except ApiError as error:
            raise TeacherError(f"turn {request.turn_id}: the teacher cannot render the prompt: {error}") from error

    def _hinted_prompts(self, request: TeacherRequest, plain: list[int]) -> tuple[dict[str, TokenIds], list[str]]:
        """The prompt of every hint that leaves room for the response, and why the others do not."""
        prompts: dict[str, TokenIds] = {}
        refusals = []
        context = self._engine.capabilities.context_length
        for hint in sorted(request.hints, key=len):
            try:
                prompt = self._hinted_prompt(request, plain, hint)
            except ApiError as error:
                refusals.append(str(error))
                continue
            if len(prompt) + len(request.response_ids) > context:
                refusals.append(f"{len(prompt)} + {len(request.response_ids)} tokens, {context} fit")
                continue
            prompts[hint] = np.asarray(prompt, dtype=np.int32)
        return prompts, refusals

    def _hinted_prompt(self, request: TeacherRequest, plain: list[int], hint: str) -> list[int]:
        messages = hinted_messages(request.messages, hint, self._label)
        hinted = self._renderer.render(messages, request.inputs)
        prompt, begun = None, request.prompt_ids[len(plain) :].tolist()
        if np.array_equal(plain, request.prompt_ids[: len(plain)]):
            # Behind what the template writes stands the beginning of a call that the client insisted on, if any.
            return hinted + begun
        tail = request.prompt_ids[request.reused_ids :].tolist()
        if request.reused_ids and plain[len(plain) - len(tail) :] == tail:
            # It begins with ids as they were sampled, which its text does not encode to.
            told = self._renderer.encode(_told(request.messages, messages))
            prompt = spliced(request.prompt_ids.tolist(), plain, hinted, told, self._renderer.special_ids)
        if prompt is None:
            raise TeacherError(
                f"turn {request.turn_id}: the template does not reproduce the prompt ({len(plain)} tokens, "
                f"{len(request.prompt_ids)} when it was served); a hint added to it would speak of another request"
            )
        return prompt

    def _check_scores(self, request: TeacherRequest, found: Scores) -> None:
        length = len(request.response_ids)
        if len(found.logps) != length:
            raise TeacherError(
                f"turn {request.turn_id}: {len(found.logps)} teacher log-probs for a response of {length} tokens"
            )
        logps = [found.logps]
        if self._top_k:
            if found.topk_ids is None or found.topk_logps is None or found.topk_logps.shape != (length, self._top_k):
                raise TeacherError(f"turn {request.turn_id}: the teacher did not name {self._top_k} tokens a position")
            logps.append(found.topk_logps)
        if not all(np.isfinite(values).all() for values in logps):
            raise TeacherError(f"turn {request.turn_id}: a teacher log-prob is not finite")


def hinted_messages(messages: Sequence[Message], hint: str, label: str) -> tuple[Message, ...]:
    """``messages`` with the hint after a blank line at the end of the last user message.

    Without a user message it ends the last message; without any message it is a user message of its own.
    """
    told = f"{label} {hint}" if label else hint
    if not messages:
        return (Message(role="user", content=told),)
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    index = users[-1] if users else len(messages) - 1
    content = messages[index].content
    changed = replace(messages[index], content=f"{content}\n\n{told}" if content else told)
    return (*messages[:index], changed, *messages[index + 1 :])


def _told(messages: Sequence[Message], hinted: Sequence[Message]) -> str:
    """What was added to the one message that `hinted_messages` changed."""
    if len(hinted) != len(messages):
        return hinted[-1].content
    return next(new.content[len(old.content) :] for old, new in zip(messages, hinted, strict=True) if old != new)


def check_same_tokenizer(policy: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Raises `TeacherError` unless every token has the same id for both: only then do their log-probs compare."""
    ours, theirs = policy.get_vocab(), teacher.get_vocab()
    if ours == theirs:
        return
    different = sorted(token for token in {*ours, *theirs} if ours.get(token) != theirs.get(token))
    example = different[0]
    raise TeacherError(
        f"teacher and policy have different vocabularies ({len(theirs)} and {len(ours)} tokens, {len(different)} "
        f"disagree, such as {example!r}: {theirs.get(example)} and {ours.get(example)}); choose a teacher with the "
        "policy's tokenizer, or teacher.model: policy"
    )
