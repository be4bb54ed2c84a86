"""The teacher speaks of exactly the tokens that were sampled, from the first to the last, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl.engine.protocol import ScoreRequest, Scores
from clawrl.judging.teacher import Teacher, TeacherError, check_same_tokenizer, hinted_messages
from clawrl.messages import Message, TeacherRequest, TurnId
from clawrl.serving.template import ChatRenderer
from tests.engine_tools import TINY, running_engine
from tests.tiny_model import build_tiny_model

USER = Message(role="user", content="tell me about plants")
MESSAGES = (Message(role="system", content="Be kind."), USER)
RESPONSE = np.array([70, 20, 300, 71, 2], dtype=np.int32)


def _renderer(folder: Path, context: int = 512) -> ChatRenderer:
    return ChatRenderer(AutoTokenizer.from_pretrained(folder), context)


def _request(folder: Path, *hints: str, **changes: object) -> TeacherRequest:
    request = TeacherRequest(
        turn_id=TurnId("t"),
        messages=MESSAGES,
        prompt_ids=np.array(_renderer(folder).render(MESSAGES), dtype=np.int32),
        response_ids=RESPONSE,
        temperature=0.7,
        hints=hints or ("Use one sentence.",),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


class FakeEngine:
    """Gives the scores that ``answer`` makes of a request."""

    def __init__(self, answer=None, context: int = 512) -> None:  # type: ignore[no-untyped-def]
        self.capabilities = SimpleNamespace(context_length=context)
        self.asked: list[ScoreRequest] = []
        self._answer = answer or (lambda request: _scores(len(request.ids) - request.start))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        self.asked += requests
        return [self._answer(request) for request in requests]


def _scores(length: int, value: float = -1.0, version: int = 0) -> Scores:
    return Scores(logps=np.full(length, value, dtype=np.float32), version=version)


def _teacher(folder: Path, engine: FakeEngine, *, top_k: int = 0, label: str = "", context: int = 512) -> Teacher:
    return Teacher(engine, _renderer(folder, context), top_k=top_k, label=label, name="fake")  # type: ignore[arg-type]


def test_targets_equal_a_plain_forward_pass_over_the_hinted_prompt_for_every_token(tiny_folder: Path) -> None:
    hints = ("Use one sentence and no list.", "Say it in euros.")

    async def run():  # type: ignore[no-untyped-def]
        async with running_engine(tiny_folder, TINY) as engine:
            teacher = Teacher(engine, _renderer(tiny_folder), top_k=6, label="(Note:)", name="tiny")
            return await teacher.targets(_request(tiny_folder, *hints))

    targets = asyncio.run(run())
    assert targets.hints == (hints[1], hints[0]), "shortest first"
    assert targets.teacher == "tiny" and targets.version == 0
    assert targets.topk_ids.shape == (2, len(RESPONSE), 6)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    for row, hint in enumerate(targets.hints):
        told = (MESSAGES[0], Message(role="user", content=f"{USER.content}\n\n(Note:) {hint}"))
        prompt = _renderer(tiny_folder).render(told)
        ids = torch.tensor([*prompt, *RESPONSE.tolist()])
        with torch.no_grad():
            rows = (model(ids[None]).logits[0] / 0.7).log_softmax(-1)[len(prompt) - 1 : -1]
        expected = rows.gather(-1, torch.from_numpy(RESPONSE.astype(np.int64))[:, None])[:, 0]
        np.testing.assert_allclose(targets.logps[row], expected.numpy(), atol=1e-5)
        np.testing.assert_allclose(targets.topk_logps[row], rows.topk(6).values.numpy(), atol=1e-5)
        assert (targets.topk_ids[row] == rows.topk(6).indices.numpy()).all()


def test_without_top_k_the_targets_name_no_tokens(tiny_folder: Path) -> None:
    engine = FakeEngine(lambda request: _scores(len(RESPONSE), version=7))
    targets = asyncio.run(_teacher(tiny_folder, engine).targets(_request(tiny_folder)))
    assert targets.topk_ids.shape == targets.topk_logps.shape == (1, len(RESPONSE), 0) and targets.version == 7


def test_a_prompt_that_the_template_does_not_reproduce_is_refused(tiny_folder: Path) -> None:
    request = _request(tiny_folder)
    changed = request.prompt_ids.copy()
    changed[-1] += 1
    for prompt in (changed, request.prompt_ids[:-1]):
        engine = FakeEngine()
        with pytest.raises(TeacherError, match="the template does not reproduce the prompt"):
            asyncio.run(_teacher(tiny_folder, engine).targets(replace(request, prompt_ids=prompt)))
        assert not engine.asked


def test_a_call_that_was_insisted_on_begins_in_the_hinted_prompt_as_it_did_in_the_plain_one(tiny_folder: Path) -> None:
    request, begun = _request(tiny_folder), [60, 61, 62]
    engine, forced = FakeEngine(), replace(request, prompt_ids=np.array([*request.prompt_ids, *begun], dtype=np.int32))
    asyncio.run(_teacher(tiny_folder, engine).targets(request))
    asyncio.run(_teacher(tiny_folder, engine).targets(forced))
    plain, forced_asked = ([*asked.ids[: asked.start]] for asked in engine.asked)
    assert forced_asked == [*plain, *begun]


def _continued(folder: Path, *later: Message) -> TeacherRequest:
    """A request that goes on from an answer as it was sampled: a spelling of it that is not the tokenizer's own."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = "plants are green"
    sampled = [tokenizer.encode(letter)[0] for letter in said]
    assert sampled != tokenizer.encode(said)
    messages = (*MESSAGES, Message(role="assistant", content=said), *later)
    renderer = _renderer(folder)
    begun = [*renderer.render(MESSAGES), *sampled, tokenizer.eos_token_id]
    text = renderer.text(messages)
    tail = renderer.encode(text[text.index(said) + len(said) + len(tokenizer.eos_token) :])
    prompt = np.array([*begun, *tail], dtype=np.int32)
    assert len(prompt) != len(renderer.render(messages))
    return _request(folder, "Be brief.", messages=messages, prompt_ids=prompt, reused_ids=len(begun))


def _asked(folder: Path, request: TeacherRequest) -> list[int]:
    """The prompt that the teacher is asked with."""
    engine = FakeEngine()
    asyncio.run(_teacher(folder, engine, label="Note:").targets(request))
    (asked,) = engine.asked
    assert asked.ids[asked.start :].tolist() == RESPONSE.tolist()
    return asked.ids[: asked.start].tolist()


@pytest.mark.parametrize("hinted", [1, 3])
def test_a_prompt_that_begins_as_it_was_sampled_keeps_every_id_and_gets_the_hint(
    tiny_folder: Path, hinted: int
) -> None:
    later = (Message(role="user", content="and rain?"),) if hinted == 3 else (Message(role="tool", content="a wall"),)
    request = _continued(tiny_folder, *later)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    told = tokenizer.encode("\n\nNote: Be brief.")
    prompt, served = _asked(tiny_folder, request), request.prompt_ids.tolist()
    # The hint ends the message that it belongs to, whose end is the mark with its number.
    ends = [at for at, token in enumerate(served) if token == tokenizer.eos_token_id]
    assert prompt == [*served[: ends[hinted]], *told, *served[ends[hinted] :]]
    hint = hinted_messages(request.messages, "Be brief.", "Note:")
    assert tokenizer.decode(prompt) == _renderer(tiny_folder).text(hint)


def test_a_prompt_that_was_sampled_as_the_template_writes_it_is_simply_written_anew(tiny_folder: Path) -> None:
    request = _continued(tiny_folder, USER)
    plain = _renderer(tiny_folder).render(request.messages)
    anew = replace(request, prompt_ids=np.array(plain, dtype=np.int32))
    hint = hinted_messages(request.messages, "Be brief.", "Note:")
    assert _asked(tiny_folder, anew) == _renderer(tiny_folder).render(hint)


@pytest.mark.parametrize("change", ["tail", "longer", "mark", "nothing reused"])
def test_a_prompt_that_only_seems_to_go_on_from_what_was_sampled_is_refused(tiny_folder: Path, change: str) -> None:
    request = _continued(tiny_folder, Message(role="user", content="and rain?"))
    ids, reused = request.prompt_ids.copy(), request.reused_ids
    if change == "tail":
        ids[-1] += 1
    elif change == "longer":
        # More is said after the answer than the template writes.
        ids = np.append(ids, np.int32(70))
    elif change == "mark":
        # A message ends in what was sampled where none ends in the template's text.
        ids[reused - 3] = ids[reused - 1]
    else:
        reused = 0
    engine = FakeEngine()
    with pytest.raises(TeacherError, match="the template does not reproduce the prompt"):
        asyncio.run(_teacher(tiny_folder, engine).targets(replace(request, prompt_ids=ids, reused_ids=reused)))
    assert not engine.asked


def test_a_hint_that_does_not_fit_beside_what_was_sampled_is_left_out(tiny_folder: Path) -> None:
    request = _continued(tiny_folder, USER)
    fits = len(_asked(tiny_folder, request)) + len(RESPONSE)
    written_anew = len(_renderer(tiny_folder).render(hinted_messages(request.messages, "Be brief.", "Note:")))
    assert written_anew + len(RESPONSE) < fits - 1
    teacher = _teacher(tiny_folder, FakeEngine(context=fits), label="Note:")
    assert asyncio.run(teacher.targets(request)).hints == ("Be brief.",)
    with pytest.raises(TeacherError, match="no hinted prompt fits"):
        asyncio.run(_teacher(tiny_folder, FakeEngine(context=fits - 1), label="Note:").targets(request))


def test_hints_that_do_not_fit_are_left_out_and_the_others_still_teach(tiny_folder: Path) -> None:
    request = _request(tiny_folder, "Use euros.", "so long " * 30)
    fits = len(_renderer(tiny_folder).render(hinted_messages(MESSAGES, "Use euros.", ""))) + len(RESPONSE)
    # The renderer refuses the long hint in the first case, the engine's context in the second.
    for renderer, context in ((fits + 5, 512), (512, fits)):
        teacher = _teacher(tiny_folder, FakeEngine(context=context), context=renderer)
        assert asyncio.run(teacher.targets(request)).hints == ("Use euros.",)
    with pytest.raises(TeacherError, match="no hinted prompt fits"):
        asyncio.run(_teacher(tiny_folder, FakeEngine(context=fits - 1)).targets(request))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda r: _scores(len(RESPONSE) - 1), "4 teacher log-probs for a response of 5"),
        (lambda r: _scores(len(RESPONSE), float("nan")), "not finite"),
        (lambda r: _scores(len(RESPONSE), float("-inf")), "not finite"),
        (lambda r: _scores(len(RESPONSE), version=len(r.ids)), "changed between two hints"),
    ],
)
def test_targets_that_are_not_exact_are_an_error_and_never_a_number(tiny_folder: Path, answer, problem: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TeacherError, match=problem):
        request = _request(tiny_folder, "Use euros.", "Use one sentence and euros.")
        asyncio.run(_teacher(tiny_folder, FakeEngine(answer)).targets(request))


def test_a_teacher_that_names_too_few_tokens_or_an_impossible_one_is_an_error(tiny_folder: Path) -> None:
    def top(width: int, value: float):  # type: ignore[no-untyped-def]
        shape = (len(RESPONSE), width)
        return lambda request: replace(
            _scores(len(RESPONSE)), topk_ids=np.zeros(shape, np.int32), topk_logps=np.full(shape, value, np.float32)
        )

    for answer, problem in (
        (top(2, -1.0), "did not name 3"),
        (top(3, float("-inf")), "not finite"),
        (None, "not name"),
    ):
        with pytest.raises(TeacherError, match=problem):
            asyncio.run(_teacher(tiny_folder, FakeEngine(answer), top_k=3).targets(_request(tiny_folder)))


def test_a_greedy_response_has_no_teacher(tiny_folder: Path) -> None:
    with pytest.raises(TeacherError, match="temperature 0"):
        asyncio.run(_teacher(tiny_folder, FakeEngine()).targets(_request(tiny_folder, temperature=0.0)))


def test_the_hint_goes_to_the_end_of_the_last_user_message() -> None:
    assistant, tool = Message(role="assistant", content="hello"), Message(role="tool", content="42")
    told = hinted_messages((USER, assistant, USER, tool), "Be brief.", "")
    assert told == (USER, assistant, Message(role="user", content="tell me about plants\n\nBe brief."), tool)
    assert hinted_messages((assistant, tool), "Be brief.", "Note:")[-1].content == "42\n\nNote: Be brief."
    assert hinted_messages((), "Be brief.", "") == (Message(role="user", content="Be brief."),)
    assert hinted_messages((Message(role="user", content=""),), "Be brief.", "")[0].content == "Be brief."


def test_a_teacher_with_another_vocabulary_is_refused_with_an_example(tiny_folder: Path, tmp_path: Path) -> None:
    policy = AutoTokenizer.from_pretrained(tiny_folder)
    check_same_tokenizer(policy, AutoTokenizer.from_pretrained(tiny_folder))
    other = AutoTokenizer.from_pretrained(build_tiny_model(tmp_path / "other", vocab_size=300))
    with pytest.raises(TeacherError, match=r"different vocabularies .* choose a teacher"):
        check_same_tokenizer(policy, other)
