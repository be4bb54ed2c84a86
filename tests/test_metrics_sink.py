"""The catalogue and the sink: what may be told, what it costs, and how far it can grow."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from clawrl.messages import DropReason, Judgement, TurnId, TurnState, Verdict
from clawrl.metrics import catalogue
from clawrl.metrics.answers import MOST_GAPS, AnswerMeter
from clawrl.metrics.catalogue import CATALOGUE
from clawrl.metrics.flusher import Flusher
from clawrl.metrics.judging import agreement, tell
from clawrl.metrics.metric import NEWEST_VERSIONS, Group, Kind, Metric
from clawrl.metrics.sink import NOTHING, Buffer, Reading, totals


def test_every_metric_of_the_module_is_in_the_catalogue_once() -> None:
    of_module = [value for value in vars(catalogue).values() if isinstance(value, Metric)]
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    assert set(of_module) <= set(CATALOGUE)
    assert {metric.field for metric in catalogue.STEP_FIGURES}.__len__() == len(catalogue.STEP_FIGURES)


def test_names_and_buckets_are_such_that_prometheus_and_ray_take_them() -> None:
    for metric in CATALOGUE:
        assert metric.prometheus.replace("_", "").isalnum() and metric.prometheus.islower(), metric.name
        assert metric.says and not metric.says.endswith("."), metric.name
        # Ray adds it, and a name that had it would have it twice.
        assert not metric.name.endswith("_total"), metric.name
        assert all(bound > 0 for bound in metric.buckets)


def test_the_number_of_series_is_bounded_by_the_catalogue() -> None:
    for metric in CATALOGUE:
        series = 1
        for values in metric.tags.values():
            series *= len(values) or NEWEST_VERSIONS
        assert series <= 32, metric.name
    assert not {key for metric in CATALOGUE for key in metric.tags} & {"session", "user", "owner", "turn", "replica"}


def test_states_and_reasons_are_those_of_the_ledger_so_that_a_new_one_is_told_too() -> None:
    assert catalogue.TURNS.tags["state"] == tuple(TurnState)
    assert catalogue.DROPPED.tags["reason"] == tuple(DropReason)


def test_a_histogram_without_buckets_and_a_gauge_with_some_are_refused() -> None:
    common = {"name": "x", "group": Group.SERVING, "says": "x"}
    with pytest.raises(ValueError, match="histogram, and it alone"):
        Metric(kind=Kind.HISTOGRAM, **common)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="histogram, and it alone"):
        Metric(kind=Kind.GAUGE, buckets=(1.0,), **common)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive and rise"):
        Metric(kind=Kind.HISTOGRAM, buckets=(0.0, 1.0), **common)  # type: ignore[arg-type]


def test_sums_add_up_levels_are_the_last_and_observations_are_kept_until_they_are_drained() -> None:
    clock = _Clock()
    sink = Buffer(clock)
    sink.add(catalogue.REQUESTS, dialect="chat", outcome="answered")
    sink.add(catalogue.REQUESTS, 2, dialect="chat", outcome="answered")
    sink.add(catalogue.REQUESTS, dialect="messages", outcome="failed")
    sink.set(catalogue.QUEUE_DEPTH, 3)
    sink.set(catalogue.QUEUE_DEPTH, 5)
    sink.observe(catalogue.TTFT_SECONDS, (0.1, 0.2))
    sink.observe(catalogue.TTFT_SECONDS, (0.3,))
    readings = sink.drain()
    assert totals(readings) == {
        ("requests", "chat", "answered"): 3,
        ("requests", "messages", "failed"): 1,
        ("queue_depth",): 5,
        ("time_to_first_token_seconds",): 3,
    }
    assert [list(r.values) for r in readings if r.metric is catalogue.TTFT_SECONDS] == [[0.1, 0.2, 0.3]]
    clock.now += 10
    assert totals(sink.drain()) == {("queue_depth",): 5}, "an exporter forgets a level that it does not hear of"
    clock.now += 10
    assert sink.drain() == [], "a level that nobody sets any more must not be told for ever"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "-inf"])
def test_figures_that_are_not_finite_are_left_out(value: float) -> None:
    sink = Buffer()
    sink.add(catalogue.GENERATION_TOKENS, value)
    sink.set(catalogue.QUEUE_DEPTH, value)
    sink.observe(catalogue.TTFT_SECONDS, (value, 0.5))
    assert totals(sink.drain()) == {("time_to_first_token_seconds",): 1}


def test_what_is_not_in_the_catalogue_is_not_told_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    sink = Buffer()
    for _ in range(3):
        sink.add(catalogue.REQUESTS, dialect="telnet", outcome="answered")
    sink.add(catalogue.REQUESTS, dialect="chat")
    sink.set(catalogue.REQUESTS, 1.0, dialect="chat", outcome="answered")  # a counter has no level
    sink.set(catalogue.REPLICAS, 1.0, version="17")
    assert totals(sink.drain()) == {("replicas", "17"): 1}
    assert sum("telnet" in record.message for record in caplog.records) == 1, "once is enough"


def test_an_endless_stream_of_observations_takes_bounded_memory() -> None:
    sink = Buffer()
    for _ in range(100):
        sink.observe(catalogue.GAP_SECONDS, [0.01] * 100)
    (reading,) = sink.drain()
    assert len(reading.values) == 4096 and sink.lost == 10_000 - 4096


def test_nothing_is_lost_or_counted_twice_between_threads() -> None:
    sink, seen = Buffer(), []
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            seen.extend(sink.drain())

    drainer = threading.Thread(target=drain)
    drainer.start()
    writers = [
        threading.Thread(target=lambda: [sink.add(catalogue.GENERATION_TOKENS) for _ in range(5000)]) for _ in range(3)
    ]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    drainer.join()
    assert totals([*seen, *sink.drain()]) == {("generation_tokens",): 15_000}


def test_a_flush_asks_the_samplers_and_an_exporter_that_fails_stops_nothing() -> None:
    told: list[Reading] = []
    flusher = Flusher(told.append, 0.01)
    flusher.sample(lambda sink: sink.set(catalogue.RUNNING, 2))
    flusher.sink.add(catalogue.GENERATION_TOKENS, 7)
    flusher.flush()
    assert totals(told) == {("requests_running",): 2, ("generation_tokens",): 7}

    def broken(reading: Reading) -> None:
        raise OSError("no agent")

    failing = Flusher(broken, 0.01)
    failing.start()
    failing.sink.add(catalogue.GENERATION_TOKENS)
    failing.stop()
    assert not failing._thread.is_alive()


def test_stopping_hands_over_what_was_counted_last() -> None:
    told: list[Reading] = []
    flusher = Flusher(told.append, 30.0)
    flusher.start()
    flusher.sink.add(catalogue.GENERATION_TOKENS, 3)
    flusher.stop()
    assert totals(told) == {("generation_tokens",): 3}


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_told_once_with_its_first_token_its_gaps_and_its_tokens() -> None:
    sink, clock = Buffer(), _Clock()
    meter = AnswerMeter(sink, clock)
    for now, tokens in ((0.5, 1), (0.6, 1), (1.0, 2), (1.1, 0)):
        clock.now = now
        meter.took(tokens)
    assert sink.drain() == [], "nothing is told in the middle of an answer"
    meter.ended(prompt_tokens=11)
    told = {reading.metric: list(reading.values) for reading in sink.drain()}
    assert told[catalogue.TTFT_SECONDS] == [0.5]
    assert told[catalogue.GAP_SECONDS] == pytest.approx([0.1, 0.2]), "two tokens that come together share the time"
    assert told[catalogue.GENERATION_TOKENS] == [4] and told[catalogue.PROMPT_TOKENS] == [11]


def test_an_answer_without_a_token_says_nothing() -> None:
    sink = Buffer()
    AnswerMeter(sink).ended(prompt_tokens=11)
    assert sink.drain() == []


@pytest.mark.parametrize("tokens", [MOST_GAPS - 1, MOST_GAPS, 1000, 20_001])
def test_a_long_answer_tells_a_bounded_and_even_part_of_its_gaps_and_always_the_longest(tokens: int) -> None:
    sink, clock = Buffer(), _Clock()
    meter = AnswerMeter(sink, clock)
    for token in range(tokens):
        # The gap grows over the answer, and one in the middle is a hold.
        clock.now += 100.0 if token == tokens // 2 + 1 else 0.001 * token
        meter.took(1)
    meter.ended(prompt_tokens=1)
    gaps = next(list(r.values) for r in sink.drain() if r.metric is catalogue.GAP_SECONDS)
    assert len(gaps) <= MOST_GAPS + 1 and max(gaps) == pytest.approx(100.0)
    if tokens > MOST_GAPS:
        usual = [gap for gap in gaps if gap < 99]
        assert len(usual) >= MOST_GAPS // 2 - 1
        assert sum(usual) / len(usual) == pytest.approx(0.001 * tokens / 2, rel=0.1), "from its beginning to its end"


def _judgement(verdict: Verdict | None, votes: tuple[int, ...], **changes: float) -> Judgement:
    fields = {"score": None, "judge": "j", "seconds": 1.5}
    return Judgement(turn_id=TurnId("t"), verdict=verdict, votes=votes, **{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("votes", "share"),
    [((), None), ((1,), None), ((1, 1), 1.0), ((1, -1), 0.5), ((1, 1, -1), 2 / 3), ((0, 1, -1), 1 / 3)],
    ids=str,
)
def test_agreement_is_the_share_of_the_most_frequent_vote(votes: tuple[int, ...], share: float | None) -> None:
    assert agreement(votes) == (None if share is None else pytest.approx(share))


def test_a_judgement_says_who_judged_how_long_it_took_and_how_much_the_votes_agreed() -> None:
    sink = Buffer()
    tell(sink, _judgement(Verdict.GOOD, (1, 1, -1)))
    tell(sink, _judgement(None, ()))
    tell(sink, _judgement(Verdict.BAD, (), feedback=-1.0))
    assert totals(sink.drain()) == {
        ("judgements", "good", "judge"): 1,
        ("judgements", "abstained", "judge"): 1,
        ("judgements", "bad", "person"): 1,
        ("judge_seconds",): 3,
        ("vote_agreement",): 1,
    }


def test_shares_of_up_to_five_votes_fall_into_buckets_of_their_own() -> None:
    shares = sorted({most / votes for votes in range(2, 6) for most in range(1, votes + 1) if 2 * most >= votes})
    places = [sum(share > bound for bound in catalogue.AGREEMENT.buckets) for share in shares]
    assert len(set(places)) == len(shares)


def test_where_nobody_looks_nothing_happens() -> None:
    NOTHING.add(catalogue.REQUESTS)
    NOTHING.set(catalogue.QUEUE_DEPTH, 1)
    NOTHING.observe(catalogue.GAP_SECONDS, (1,))


def test_the_documentation_has_every_metric_with_all_of_its_names() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "observability.md").read_text()
    rows = {cells[1].strip("` "): cells for line in page.splitlines() if len(cells := line.split("|")) == 8}
    for metric in CATALOGUE:
        cells = [cell.strip() for cell in rows.pop(metric.prometheus)[2:7]]
        tags = ", ".join(f"`{tag}`" for tag in metric.tags)
        other = [f"`{name}`" if name else "" for name in (metric.slime, metric.verl)]
        assert cells == [metric.kind.value, tags, metric.says, *other], metric.name
    assert not [name for name in rows if name.startswith("ray_clawrl_")], "metrics that there are not"
