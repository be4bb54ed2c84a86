"""Degenerate answers set off the alarm that names them; ordinary learning does not."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from itertools import count

import pytest
from pydantic import ValidationError

from clawrl.guards.alarms import Alarm, AlarmPanel
from clawrl.guards.config import AlarmConfig
from clawrl.messages import ModelVitals, TurnId, Vitals

_NUMBER = count()
MODEL = ModelVitals(fluency=-2.0, on_topic_lift=0.6, kl=0.0)


def _vitals(version: int, tokens: int = 20, repetition: float = 0.9, model: ModelVitals | None = MODEL) -> Vitals:
    return Vitals(
        turn_id=TurnId(f"t{next(_NUMBER)}"),
        version=version,
        response_tokens=tokens,
        repetition=repetition,
        model=model,
    )


def _healthy(version: int, turns: int, seed: int = 0) -> list[Vitals]:
    """One short sentence each, as noisy as a small model's, every second turn measured."""
    rng = random.Random(seed + 1000 * version)
    return [
        _vitals(
            version,
            tokens=rng.randint(6, 25),
            repetition=rng.uniform(0.5, 1.0),
            model=ModelVitals(
                fluency=rng.gauss(-2.0, 0.7), on_topic_lift=rng.gauss(0.5, 0.5), kl=max(0.0, rng.gauss(0.2, 0.2))
            )
            if i % 2
            else None,
        )
        for i in range(turns)
    ]


def _feed(panel: AlarmPanel, turns: Iterable[Vitals]) -> Alarm | None:
    alarms = [alarm for turn in turns if (alarm := panel.observe(turn))]
    assert len(alarms) <= 1
    return alarms[0] if alarms else None


def _panel(**settings: object) -> AlarmPanel:
    panel = AlarmPanel(AlarmConfig(**settings))  # type: ignore[arg-type]
    assert _feed(panel, _healthy(1, 32)) is None
    return panel


@pytest.mark.parametrize("seed", range(5))
def test_noisy_healthy_answers_over_many_short_versions_never_alarm(seed: int) -> None:
    panel = AlarmPanel(AlarmConfig())
    turns = [turn for version in range(40) for turn in _healthy(version, 10, seed)]
    assert _feed(panel, turns) is None
    assert max(panel.healthy_versions(), default=0) >= 36


def test_learning_to_answer_in_one_short_sentence_is_no_collapse() -> None:
    panel = AlarmPanel(AlarmConfig())
    _feed(panel, (_vitals(0, tokens=200 + i) for i in range(32)))
    assert _feed(panel, (turn for version in range(1, 20) for turn in _healthy(version, 10))) is None


DEGENERATE: dict[str, Callable[[int], Vitals]] = {
    "share_short": lambda i: _vitals(2, tokens=1 + i % 4),
    "share_repetitive": lambda i: _vitals(2, repetition=0.1 if i % 5 else 0.9),
    "kl": lambda i: _vitals(2, model=ModelVitals(fluency=-2.0, on_topic_lift=0.5, kl=2.5 + 0.1 * (i % 3))),
    "fluency": lambda i: _vitals(2, model=ModelVitals(fluency=-5.0 + 0.1 * (i % 3), on_topic_lift=0.5, kl=1.0)),
    "on_topic_lift": lambda i: _vitals(2, model=ModelVitals(fluency=-2.0, on_topic_lift=0.01 * (i % 3), kl=1.0)),
    "share_non_finite": lambda i: _vitals(2, model=ModelVitals(fluency=float("nan"), on_topic_lift=0.5, kl=0.1)),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_each_kind_of_degeneration_is_caught_and_named(name: str) -> None:
    panel = _panel(window=32)
    collapsed = [DEGENERATE[name](i) for i in range(16)]
    alarm = _feed(panel, collapsed)
    assert alarm is not None
    assert alarm.name == name and alarm.version == 2
    assert panel.observe(collapsed[0]) is None, "one alarm, not one per turn"


def test_a_policy_that_falls_silent_is_caught_before_a_version_of_its_own_is_known_well() -> None:
    panel = _panel()
    silent = [_vitals(2 + i // 4, tokens=1, repetition=1.0, model=None) for i in range(48)]
    caught = next(i for i, turn in enumerate(silent) if panel.observe(turn))
    assert 16 <= caught < 40, "48 recent turns of which more than half are silent, beyond chance"


def test_word_salad_of_the_right_length_is_caught() -> None:
    salad = ModelVitals(fluency=-8.0, on_topic_lift=0.02, kl=6.0)
    alarm = _feed(_panel(), (_vitals(2, model=salad if i % 2 else None) for i in range(32)))
    assert alarm is not None and alarm.name == "kl"
    assert "fluency" in alarm.reason and "on-topic lift" in alarm.reason


def test_the_reason_names_figure_bound_turns_versions_and_remedy() -> None:
    panel = _panel(window=16)
    alarm = _feed(panel, (_vitals(2 + i // 8, tokens=2) for i in range(16)))
    assert alarm is not None
    expected = [
        "share of answers of at most 4 tokens",
        "is 0.75",
        "over 16 turns of versions 1 to 3",
        "most allowed is 0.50",
        "`clawrl resume`",
        "raise guards.alarms.max_share_short",
    ]
    assert [part for part in expected if part not in alarm.reason] == []
    assert alarm.figures["share_short"] == 0.75


def test_mean_length_has_a_floor_and_a_ceiling_that_can_be_set() -> None:
    few_words = [_vitals(2, tokens=5) for _ in range(16)]
    assert _feed(_panel(), few_words) is None
    alarm = _feed(_panel(min_mean_tokens=6.0), few_words)
    assert alarm is not None and "lower guards.alarms.min_mean_tokens" in alarm.reason
    long = [_vitals(2, tokens=90) for _ in range(16)]
    assert _feed(_panel(), long) is None
    alarm = _feed(_panel(max_mean_tokens_ratio=3.0), long)
    assert alarm is not None and alarm.name == "mean_tokens" and "max_mean_tokens_ratio" in alarm.reason


def test_one_outlier_is_chance_however_large() -> None:
    wild = ModelVitals(fluency=-60.0, on_topic_lift=-50.0, kl=1e6)
    panel = _panel()
    turns = [*_healthy(2, 20), _vitals(2, tokens=1, repetition=0.01, model=wild), *_healthy(2, 20)]
    assert _feed(panel, turns) is None


def test_one_figure_that_is_not_finite_poisons_nothing() -> None:
    panel = _panel()
    bad = _vitals(2, model=ModelVitals(fluency=float("nan"), on_topic_lift=float("-inf"), kl=float("inf")))
    assert _feed(panel, [*_healthy(2, 20), bad, *_healthy(2, 20)]) is None
    figures = panel.figures()
    assert figures["share_non_finite"] == pytest.approx(1 / 41)
    assert -3.0 < figures["fluency"] < -1.0 and figures["kl"] < 1.0


def test_a_bound_that_the_first_turns_break_is_not_watched() -> None:
    panel = AlarmPanel(AlarmConfig())
    yes_no = [_vitals(version, tokens=2) for version in range(1, 8) for _ in range(10)]
    assert _feed(panel, yes_no) is None
    assert panel.healthy_versions()[0] == 7
    alarm = _feed(panel, (_vitals(8, tokens=2, repetition=0.1) for _ in range(48)))
    assert alarm is not None and alarm.name == "share_repetitive"


def test_what_the_untrained_model_does_later_is_no_alarm() -> None:
    assert _feed(_panel(), (_vitals(1, tokens=1) for _ in range(100))) is None


def test_no_alarm_before_enough_turns() -> None:
    panel = AlarmPanel(AlarmConfig())
    assert _feed(panel, _healthy(1, 3)) is None
    assert _feed(panel, (_vitals(2, tokens=1) for _ in range(12))) is None


def test_a_lift_that_was_never_there_cannot_be_lost() -> None:
    panel = AlarmPanel(AlarmConfig())
    no_lift = ModelVitals(fluency=-2.0, on_topic_lift=0.04, kl=0.0)
    _feed(panel, (_vitals(1, model=no_lift) for _ in range(32)))
    lost = ModelVitals(fluency=-2.0, on_topic_lift=-0.5, kl=0.0)
    assert _feed(panel, (_vitals(2, model=lost) for _ in range(48))) is None


def test_without_the_frozen_model_the_texts_alone_are_watched() -> None:
    panel = AlarmPanel(AlarmConfig(probe_every=0))
    assert _feed(panel, (_vitals(version, model=None) for version in range(10) for _ in range(10))) is None
    assert "kl" not in panel.figures()
    assert _feed(panel, (_vitals(11, tokens=1, model=None) for _ in range(48))) is not None


def test_earlier_versions_stop_counting_once_the_newest_is_known() -> None:
    panel = _panel()
    # Three in ten of version 2 are too short for comfort, not for an alarm; version 3 is fine.
    _feed(panel, (_vitals(2, tokens=1 if i % 10 < 3 else 20) for i in range(32)))
    assert panel.figures()["share_short"] > 0.25
    _feed(panel, _healthy(3, 16))
    assert panel.figures()["share_short"] == 0.0


def test_turned_off_it_measures_but_stays_silent() -> None:
    panel = _panel(enabled=False)
    assert _feed(panel, (_vitals(2, tokens=1) for _ in range(48))) is None
    assert panel.figures()["share_short"] == 1.0


def test_the_healthy_version_is_the_newest_whose_own_turns_kept_every_bound() -> None:
    panel = _panel()
    assert panel.healthy_versions()[0] == 1
    _feed(panel, _healthy(2, 7))
    assert panel.healthy_versions()[0] == 1, "too few turns to say"
    _feed(panel, [_vitals(2, model=None)])
    assert panel.healthy_versions()[0] == 1, "the frozen model has not seen enough of them"
    _feed(panel, [_vitals(2)])
    assert panel.healthy_versions()[0] == 2
    # Six of ten are short: the window does not say so yet, the version's own turns do.
    assert _feed(panel, (_vitals(3, tokens=1 if i % 10 < 6 else 20) for i in range(10))) is None
    assert panel.healthy_versions()[0] == 2


def test_one_odd_figure_at_the_start_does_not_hide_a_version_of_odd_figures() -> None:
    odd = ModelVitals(fluency=math.nan, on_topic_lift=0.5, kl=0.1)
    panel = AlarmPanel(AlarmConfig())
    _feed(panel, [*_healthy(0, 40), _vitals(0, model=odd)])
    alarm = _feed(panel, (_vitals(1, model=odd) for _ in range(48)))
    assert alarm is not None and alarm.name == "share_non_finite" and 1 not in panel.healthy_versions()


def test_a_version_that_turns_out_worse_is_healthy_no_more() -> None:
    panel = _panel()
    _feed(panel, [*_healthy(2, 10), *(_vitals(2, tokens=1) for _ in range(14))])
    assert panel.healthy_versions()[0] == 1


def test_after_resume_it_looks_at_new_turns_only_and_can_alarm_again() -> None:
    panel = _panel()
    assert _feed(panel, (_vitals(2, tokens=1) for _ in range(48))) is not None
    panel.resume()
    assert _feed(panel, (_vitals(3, tokens=1) for _ in range(15))) is None
    assert panel.observe(_vitals(3, tokens=1)) is not None


def test_a_restart_changes_nothing() -> None:
    panel = _panel()
    turns = [*_healthy(2, 20), *(_vitals(3, tokens=1 + i % 5) for i in range(60))]
    turns[30] = _vitals(3, model=ModelVitals(fluency=float("nan"), on_topic_lift=0.0, kl=0.0))
    for i, turn in enumerate(turns):
        restarted = AlarmPanel(AlarmConfig())
        restarted.restore(json.loads(json.dumps(panel.state(), allow_nan=False)))
        assert restarted.observe(turn) == panel.observe(turn), i
        assert restarted.figures() == panel.figures()
        assert restarted.healthy_versions() == panel.healthy_versions()
    assert panel.state()["alarm"] is not None


def test_the_baseline_is_the_first_versions_as_long_as_it_gives_enough() -> None:
    panel = AlarmPanel(AlarmConfig())
    _feed(panel, (_vitals(0, tokens=10) for _ in range(20)))
    _feed(panel, (_vitals(1, tokens=30) for _ in range(20)))
    assert panel.figures()["baseline_mean_tokens"] == 10.0
    short_lived = AlarmPanel(AlarmConfig())
    _feed(short_lived, (_vitals(0, tokens=10) for _ in range(8)))
    _feed(short_lived, (_vitals(1, tokens=30) for _ in range(20)))
    assert short_lived.figures()["baseline_mean_tokens"] == 20.0


def test_an_empty_panel_has_nothing_to_say() -> None:
    panel = AlarmPanel(AlarmConfig())
    assert panel.figures() == {} and panel.healthy_versions() == ()


def test_a_window_too_small_for_its_least_is_refused() -> None:
    with pytest.raises(ValidationError, match="raise window"):
        AlarmConfig(window=8, min_turns=16)
