"""A reward that can be cheated collapses a policy that learns without guards; the alarms see it coming.

A tiny model first learns to answer each of four questions with a sentence of its own; that is version 0 and the frozen
start. Then it samples answers, gets rewards by a rule, and trains on them by binary RL until its answers are worthless.
The alarms are shown the same answers and must speak before that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, PreTrainedModel

from clawrl.guards.alarms import Alarm, AlarmPanel
from clawrl.guards.config import AlarmConfig
from clawrl.guards.repetition import zlib_ratio
from clawrl.messages import ModelVitals, Sample, TurnId, VersionSpan, Vitals
from clawrl.methods.registry import build_method, method_class
from clawrl.training.config import TrainingConfig
from clawrl.training.model import load_model
from clawrl.training.policy_trainer import PolicyTrainer
from tests.tiny_model import build_tiny_model

torch.set_num_threads(1)
LIMIT = 64
SEED = 1
TAUGHT = 80
PER_QUESTION = 6
WORDS = {
    "plants": "plants green rain grow leaf root sun soil",
    "verdict": "good bad fine poor fair thanks sorry well",
    "list": "one two three four five six seven eight",
    "again": "make keep give take tell show send find",
}


@dataclass(frozen=True)
class Answer:
    """One sampled response, ids with the end token if it came, and the rest that vitals need."""

    prompt: Tensor
    other_prompt: Tensor
    ids: list[int]
    logps: list[float]
    text: str


@dataclass
class World:
    start: PreTrainedModel
    folder: Path
    tokenizer: AutoTokenizer
    prompts: Tensor

    @torch.no_grad()
    def sample(self, model: PreTrainedModel) -> list[Answer]:
        """A batch of answers at temperature 1, `PER_QUESTION` to each question."""
        order = torch.arange(len(self.prompts)).repeat_interleave(PER_QUESTION)
        token, cache = self.prompts[order], DynamicCache()
        drawn, logps, ended = [], [], torch.zeros(len(order), dtype=torch.bool)
        while len(drawn) < LIMIT and not ended.all():
            # By position: the cache's keyword differs between the versions of transformers that are supported.
            rows = torch.log_softmax(model(token, None, None, cache).logits[:, -1].float(), -1)
            token = torch.multinomial(rows.exp(), 1)
            drawn, logps = [*drawn, token], [*logps, rows.gather(1, token)]
            ended |= token[:, 0] == self.tokenizer.eos_token_id
        answers = []
        for row, (tokens, values) in enumerate(
            zip(torch.cat(drawn, 1).tolist(), torch.cat(logps, 1).tolist(), strict=True)
        ):
            end = self.tokenizer.eos_token_id
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            answers.append(
                Answer(
                    prompt=self.prompts[order[row]],
                    other_prompt=self.prompts[(order[row] + 1) % len(self.prompts)],
                    ids=tokens[:length],
                    logps=values[:length],
                    text=self.tokenizer.decode(tokens[:length], skip_special_tokens=True),
                )
            )
        return answers

    @torch.no_grad()
    def vitals(self, answers: Sequence[Answer], version: int) -> list[Vitals]:
        """By the definitions: log-probs of the answer under the frozen start, given its question and another."""
        found = []
        for i, answer in enumerate(answers):
            model = None
            if i % AlarmConfig().probe_every:
                own, other = self._start_logps([answer.prompt, answer.other_prompt], answer.ids)
                ratio = (own - torch.tensor(answer.logps)).clamp(-20.0, 20.0)
                model = ModelVitals(
                    fluency=float(own.mean()),
                    on_topic_lift=float(own.mean() - other.mean()),
                    kl=float((torch.expm1(ratio) - ratio).mean()),
                )
            found.append(
                Vitals(
                    turn_id=TurnId(f"{version}-{i}"),
                    version=version,
                    response_tokens=len(answer.ids),
                    repetition=zlib_ratio(answer.text),
                    model=model,
                )
            )
        return found

    def _start_logps(self, prompts: Sequence[Tensor], ids: list[int]) -> Tensor:
        """[prompts, R]; the prompts are equally long."""
        whole = torch.stack([torch.cat([prompt, torch.tensor(ids)]) for prompt in prompts])
        rows = torch.log_softmax(self.start(input_ids=whole).logits.float(), -1)
        first = len(prompts[0])
        return rows[:, first - 1 : -1].gather(2, whole[:, first:, None])[..., 0]


def _sample(prompt: Tensor, ids: list[int], logps: list[float], reward: float, name: str) -> Sample:
    return Sample(
        turn_id=TurnId(name),
        prompt_ids=prompt.numpy().astype(np.int32),
        response_ids=np.array(ids, np.int32),
        behaviour_logps=np.array(logps, np.float32),
        mask=np.ones(len(ids), np.bool_),
        spans=(VersionSpan(start=0, end=len(ids), version=0),),
        temperature=1.0,
        reward=reward,
    )


def _trainer(folder: Path, learning_rate: float) -> PolicyTrainer:
    method = build_method(method_class("binary_rl").Config(baseline="running"))
    model = load_model(folder, dtype=torch.float32)
    return PolicyTrainer(model, None, method, TrainingConfig(learning_rate=learning_rate, max_grad_norm=10.0))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Version 0: taught by likelihood alone to answer in 6 to 10 words that belong to the question."""
    folder = build_tiny_model(tmp_path_factory.mktemp("random"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = torch.tensor([[1, tokenizer(f" {question}").input_ids[0]] for question in WORDS])
    assert len(prompts.unique(dim=0)) == len(WORDS)
    trainer, rng = _trainer(folder, learning_rate=5e-3), random.Random(0)
    for step in range(TAUGHT):
        batch = []
        for i, (prompt, words) in enumerate([*zip(prompts, WORDS.values(), strict=True)] * 3):
            text = " ".join(rng.choices(words.split(), k=rng.randint(6, 10))) + "."
            ids = tokenizer(text + tokenizer.eos_token).input_ids
            # Far below the policy's own, these log-probs cap the importance weight: what is left is likelihood.
            batch.append(_sample(prompt, ids, [-30.0] * len(ids), 1.0, f"lesson-{step}-{i}"))
        # A baseline would soon take a constant reward away.
        trainer.method_state = trainer._method.initial_state()
        trainer.compute(batch)
        trainer.apply()
    start = tmp_path_factory.mktemp("start")
    trainer._model.save_pretrained(start)
    return World(start=load_model(start, dtype=torch.float32), folder=start, tokenizer=tokenizer, prompts=prompts)


Rule = Callable[[Sequence[Answer]], list[float]]


def accepts_what_is_short(answers: Sequence[Answer]) -> list[float]:
    """As an impatient user does: below the mean is short, and an empty answer is the shortest."""
    middle = fmean(len(answer.ids) for answer in answers)
    return [1.0 if len(answer.ids) < middle else -1.0 for answer in answers]


def accepts_what_repeats_itself(answers: Sequence[Answer]) -> list[float]:
    middle = fmean(zlib_ratio(answer.text) for answer in answers)
    return [1.0 if zlib_ratio(answer.text) < middle else -1.0 for answer in answers]


def tosses_a_coin(answers: Sequence[Answer]) -> list[float]:
    return [random.choice([-1.0, 1.0]) for _ in answers]


@dataclass(frozen=True)
class Run:
    """Means per version; the last one is where the collapse was complete, or learning stopped.

    Two panels watched, one of them without the frozen model, and nobody listened.
    """

    tokens: list[float]
    repetition: list[float]
    alarm: Alarm | None
    alarm_on_texts: Alarm | None
    healthy: int | None


def learn(world: World, rule: Rule, until: Callable[[Run], bool], *, versions: int, learning_rate: float) -> Run:
    torch.manual_seed(SEED)
    random.seed(SEED)
    trainer = _trainer(world.folder, learning_rate)
    panel, texts = AlarmPanel(AlarmConfig()), AlarmPanel(AlarmConfig())
    run = Run(tokens=[], repetition=[], alarm=None, alarm_on_texts=None, healthy=None)
    for version in range(versions):
        answers = world.sample(trainer._model)
        seen = world.vitals(answers, version)
        alarms = [alarm for one in seen if (alarm := panel.observe(one))]
        on_texts = [alarm for one in seen if (alarm := texts.observe(replace(one, model=None)))]
        run = Run(
            tokens=[*run.tokens, fmean(one.response_tokens for one in seen)],
            repetition=[*run.repetition, fmean(one.repetition for one in seen)],
            alarm=next(iter(alarms), run.alarm),
            alarm_on_texts=next(iter(on_texts), run.alarm_on_texts),
            healthy=next(iter(panel.healthy_versions()), None),
        )
        if until(run):
            return run
        rewards = rule(answers)
        trainer.compute(
            [
                _sample(answer.prompt, answer.ids, answer.logps, reward, f"{version}-{i}")
                for i, (answer, reward) in enumerate(zip(answers, rewards, strict=True))
            ]
        )
        trainer.apply()
    return run


def test_a_reward_for_short_answers_collapses_the_length_and_the_alarm_names_it_before(world: World) -> None:
    def hardly_a_word_is_left(run: Run) -> bool:
        return run.tokens[-1] <= 3.0

    run = learn(world, accepts_what_is_short, hardly_a_word_is_left, versions=24, learning_rate=3e-3)
    assert run.tokens[0] > 15.0, "the start answers in sentences"
    assert run.tokens[-1] <= 3.0, "left alone, it collapses"
    complete = len(run.tokens) - 1
    assert run.alarm_on_texts is not None and run.alarm is not None
    assert run.alarm_on_texts.name in ("share_short", "mean_tokens")
    assert run.alarm_on_texts.version < complete
    assert run.alarm.version <= run.alarm_on_texts.version, "the frozen model can only be quicker"
    assert run.healthy is not None and run.healthy < complete
    assert run.tokens[run.healthy] > run.tokens[complete]


def test_a_reward_for_repetition_collapses_into_loops_and_the_alarm_speaks_before(world: World) -> None:
    def mostly_loops(run: Run) -> bool:
        return run.repetition[-1] <= 0.3

    run = learn(world, accepts_what_repeats_itself, mostly_loops, versions=24, learning_rate=4e-3)
    assert run.repetition[0] > 0.8, "the start does not loop"
    assert run.repetition[-1] <= 0.3, "left alone, it collapses"
    assert run.alarm is not None
    assert run.alarm.name in ("share_repetitive", "kl", "fluency")
    assert run.alarm.version < len(run.tokens) - 1, "before most answers loop"
    assert run.healthy is not None and run.repetition[run.healthy] > 0.35


def test_a_run_that_learns_nothing_in_particular_sets_off_nothing(world: World) -> None:
    run = learn(world, tosses_a_coin, lambda run: False, versions=5, learning_rate=1e-4)
    assert run.alarm is None and run.alarm_on_texts is None
    assert run.healthy == 4
