"""What the frozen model says of answers: against plain forward passes, and with an answer that is its own prompt's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from clawrl.engine.config import EngineConfig
from clawrl.engine.transformers import TransformersEngine
from clawrl.evaluation import measures as measures_module
from clawrl.evaluation.demo_users import Answer
from clawrl.evaluation.frozen import FrozenStart, frozen_start
from clawrl.evaluation.live_graph import RunProblem
from clawrl.evaluation.measures import Measures, NotMeasurable, Question, mean_of, measure
from clawrl.judging.divergence import k3
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.store import Ledger
from clawrl.messages import Message, SamplingParams, Turn, VersionSpan
from clawrl.serving.template import ChatRenderer
from tests.ledger_kit import ask, serve, user
from tests.tiny_model import build_tiny_model

TINY = EngineConfig(dtype="float32", context_length=512, kv_blocks=16, page_size=32, threads=1)
WISH = "a short plain sentence, please"
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> TransformersEngine:
    made = TransformersEngine(folder, TINY, generates=False)
    asyncio.run(made.start())
    return made


def turn_of(renderer: ChatRenderer, number: int, question: str, answer: str = "plants are green") -> Turn:
    talk = user(question)
    bare = serve(ask(f"t{number}", talk), talk, answer)
    ids = np.asarray([*renderer._tokenizer.encode(answer, add_special_tokens=False), 2], dtype=np.int32)
    return replace(
        bare,
        prompt_ids=np.asarray(renderer.render(talk), dtype=np.int32),
        response_ids=ids,
        response_logps=np.linspace(-3.0, -0.5, len(ids), dtype=np.float32),
        spans=(VersionSpan(start=0, end=len(ids), version=0),),
        sampling=SamplingParams(temperature=TEMPERATURE),
    )


def plain_logps(folder: Path, prompt: list[int], response: list[int], temperature: float) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        logps = (model(torch.tensor([prompt + response])).logits[0] / temperature).log_softmax(-1).numpy()
    return np.array([logps[len(prompt) - 1 + position, token] for position, token in enumerate(response)])


def test_each_measure_is_what_plain_forward_passes_give(
    folder: Path, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = ChatRenderer(engine.tokenizer, 512)
    asked = ["tell me about plants", "tell me about the rain", "what grows in the rain", "is it good"]
    topics = ["plants", "plants", "rain", "good"]
    turns = [turn_of(renderer, number, question) for number, question in enumerate(asked)]
    monkeypatch.setattr(measures_module, "_AT_ONCE", 3)
    questions = [Question(turn=turn, topic=topic) for turn, topic in zip(turns, topics, strict=True)]
    found = asyncio.run(measure(engine, renderer, questions, WISH))
    # The next one with another topic, cyclically: 0 and 1 skip to the rain, the last one goes round to the first.
    for index, other in enumerate([2, 2, 3, 0]):
        turn, response = turns[index], turns[index].response_ids.tolist()
        told = renderer.render([Message(role="user", content=f"{asked[index]}\n\n{WISH}")])
        own = plain_logps(folder, turn.prompt_ids.tolist(), response, TEMPERATURE)
        elsewhere = plain_logps(folder, turns[other].prompt_ids.tolist(), response, TEMPERATURE)
        ratio = own - turn.response_logps
        expected = Measures(
            turns=1,
            tokens=len(response),
            fluency=plain_logps(folder, told, response, 1.0).mean(),
            lift=own.mean() - elsewhere.mean(),
            kl=(np.exp(ratio) - 1.0 - ratio).mean(),
        )
        for name in ("turns", "tokens", "fluency", "lift", "kl"):
            assert getattr(found[index], name) == pytest.approx(getattr(expected, name), rel=1e-4), name


def test_without_an_instruction_fluency_is_that_of_the_prompt_as_it_was(
    folder: Path, engine: TransformersEngine
) -> None:
    renderer = ChatRenderer(engine.tokenizer, 512)
    turn = turn_of(renderer, 1, "tell me about plants")
    found = asyncio.run(measure(engine, renderer, [Question(turn=turn, topic="plants")], None))[0]
    plain = plain_logps(folder, turn.prompt_ids.tolist(), turn.response_ids.tolist(), 1.0).mean()
    assert found.fluency == pytest.approx(plain, rel=1e-4)
    assert found.lift is None, "there is no other question"


def test_a_prompt_that_its_messages_do_not_make_is_refused(engine: TransformersEngine) -> None:
    renderer = ChatRenderer(engine.tokenizer, 512)
    turn = turn_of(renderer, 1, "tell me about plants")
    turn = replace(turn, prompt_ids=turn.prompt_ids[1:])
    with pytest.raises(NotMeasurable, match=r"t1.*no longer make its prompt"):
        asyncio.run(measure(engine, renderer, [Question(turn=turn, topic="plants")], WISH))


def test_kl_is_zero_for_equal_log_probs_never_negative_and_finite_for_a_token_that_one_gave_up() -> None:
    logps = np.array([-0.1, -5.0, -80.0], dtype=np.float32)
    assert k3(logps, logps) == 0.0
    assert k3(logps - 1, logps) == pytest.approx(np.exp(-1.0), rel=1e-6)
    assert k3(logps + 1, logps) == pytest.approx(np.e - 2.0, rel=1e-6)
    assert np.isfinite(k3(np.array([-0.1], dtype=np.float32), np.array([-500.0], dtype=np.float32)))


def test_a_mean_counts_each_turn_once_and_lifts_where_there_are_any() -> None:
    one = Measures(turns=1, tokens=4.0, fluency=-1.0, lift=None, kl=0.1)
    two = Measures(turns=1, tokens=8.0, fluency=-2.0, lift=0.5, kl=0.3)
    assert mean_of([one, two]) == Measures(turns=2, tokens=6.0, fluency=-1.5, lift=0.5, kl=pytest.approx(0.2))
    assert mean_of([one]) == one and mean_of([]) is None


def test_a_run_that_is_over_is_measured_from_its_own_ledger_and_what_it_lost_is_left_out(
    folder: Path, engine: TransformersEngine, tmp_path: Path
) -> None:
    deployment, home = tmp_path / "tiny.yaml", tmp_path / "home"
    settings = {"dtype": "float32", "context_length": 512, "kv_blocks": 16, "page_size": 32}
    args = {
        "name": "tiny",
        "serving": {"served_name": "tiny"},
        "policy": {"model": {"source": str(folder)}, "engine": settings},
        "trainer": {"training": {"dtype": "float32"}},
    }
    deployment.write_text(yaml.safe_dump({"applications": [{"import_path": "clawrl.graph:app", "args": args}]}))

    async def look() -> dict[str, Measures]:
        async with frozen_start(deployment, home) as model:
            answers = [answer(f"t{number}") for number in (0, 7, 1, 2)]
            assert dict(model.tokens(answers)) == {f"t{n}": len(turns[n].response_ids) for n in (0, 1)} | {"t2": 0}
            return dict(await model.measure(answers, WISH))

    with pytest.raises(RunProblem, match=r"ledger\.sqlite is not there"):
        asyncio.run(look())
    renderer = ChatRenderer(engine.tokenizer, 512)
    turns = [turn_of(renderer, number, question) for number, question in enumerate(["plants", "rain", "green"])]
    empty = np.empty(0, dtype=np.int32)
    turns[2] = replace(turns[2], response_ids=empty, response_logps=empty.astype(np.float32), spans=())
    (home / "tiny").mkdir(parents=True)
    with Ledger(home / "tiny" / "ledger.sqlite", LedgerConfig()) as ledger:
        for turn in turns:
            ledger.record(turn)
    found = asyncio.run(look())
    assert list(found) == ["t0", "t1"]
    questions = [Question(turn=turns[0], topic="plants"), Question(turn=turns[1], topic="rain")]
    assert list(found.values()) == asyncio.run(measure(engine, renderer, questions, WISH))


def test_a_run_with_a_turn_that_cannot_be_measured_is_a_problem_of_that_run(
    engine: TransformersEngine, tmp_path: Path
) -> None:
    renderer = ChatRenderer(engine.tokenizer, 512)
    turn = turn_of(renderer, 7, "clouds")
    with Ledger(tmp_path / "ledger.sqlite", LedgerConfig()) as ledger:
        ledger.record(replace(turn, prompt_ids=turn.prompt_ids[1:]))
        with pytest.raises(RunProblem, match=r"cannot be measured: turn t7.*no longer make its prompt"):
            asyncio.run(FrozenStart(engine, renderer, ledger).measure([answer("t7")], WISH))


def answer(turn_id: str) -> Answer:
    return Answer(
        kind="talk", user=0, session="s", turn_id=turn_id, question=turn_id, message="q", text="x", words=1,
        finish_reason="stop", version=0, objection=None, seconds=0.1, first_token_s=0.1,
    )  # fmt: skip
