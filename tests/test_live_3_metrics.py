"""What the graph that learned tells Prometheus: every metric of the catalogue that can occur in it."""

from __future__ import annotations

import re
import time

import httpx

from clawrl.metrics import catalogue
from clawrl.metrics.catalogue import CATALOGUE
from tests.live import Live
from tests.scraping import RAYS_OWN, scrape, series_of

# The loss has no pull to the start, the judge one vote, a hold of a tiny model meets a request by chance only, and the
# frozen model is asked after the first window of answers.
BY_CHANCE = {
    catalogue.HELD_REQUESTS.name,
    catalogue.AGREEMENT.name,
    catalogue.KL_FROM_START.name,
    "train_kl",
}


def test_every_metric_that_can_occur_is_there_with_the_tags_of_the_catalogue(live: Live) -> None:
    live.wait_for(lambda s: s["version"] >= 2, what="a second step, which knows how long the first publish took")
    wanted = {metric.name for metric in CATALOGUE} - BY_CHANCE
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        told = scrape(live)
        missing = {metric.name for metric in CATALOGUE if metric.name in wanted and series_of(metric) not in told}
        if not missing:
            break
        time.sleep(1)
    assert not missing
    for metric in CATALOGUE:
        for labels, value in told.get(series_of(metric), ()):
            own = {label: text for label, text in labels.items() if not label.startswith("otel_")}
            own = {label: text for label, text in own.items() if label not in RAYS_OWN}
            assert metric.why_not(own) is None
            assert value == value, f"{metric.name} is not a number"


def test_the_figures_are_those_of_the_status(live: Live) -> None:
    def told(name: str, **tags: str) -> float:
        return sum(v for labels, v in scrape(live)[name] if all(labels[k] == text for k, text in tags.items()))

    # They are told every now and then, and while some turns are still being judged the one is ahead of the other.
    for _ in range(60):
        status = live.status()
        turns = status["turns"]
        figures = (
            (told("ray_clawrl_turns_recorded"), turns["recorded"]),
            (told("ray_clawrl_turns_unaccounted"), 0),
            (told("ray_clawrl_turns", state="dropped"), turns["by_state"].get("dropped", 0)),
            (told("ray_clawrl_turns_dropped", reason="side"), turns["dropped"].get("side", 0)),
            (told("ray_clawrl_replicas"), 2),
        )
        if all(one == other for one, other in figures):
            break
        time.sleep(1)
    assert [one for one, _ in figures] == [other for _, other in figures]
    assert told("ray_clawrl_requests_total", dialect="chat", outcome="answered") > 10
    newest = status["trainer"]["last_metrics"]
    # A step's time is that of its parts and of what stands between them.
    parts = sum(newest[f"{phase}_s"] for phase in ("wait", "forward", "backward", "optimizer", "update_weights"))
    assert 0 < parts <= newest["step_s"]
    assert newest["forward_s"] > 0 and newest["backward_s"] > 0 and newest["optimizer_s"] > 0
    # Samples may be a few versions old.
    assert newest["entropy"] > 0 and -1e-6 < newest["train_rollout_kl"] < 0.1


def test_ray_shows_the_actors_and_the_training_run_under_names_that_say_what_they_are(live: Live) -> None:
    dashboard = re.findall(r"https?://(?:127\.0\.0\.1|localhost):\d+", _dashboard_line(live))[0]
    listed = httpx.get(f"{dashboard}/api/v0/actors", params={"limit": 1000}, timeout=30).json()
    actors = listed["data"]["result"]["result"]
    names = {actor["name"] for actor in actors if actor["state"] == "ALIVE"}
    assert {"tiny-coordinator", "tiny-trainer"} <= names
    for deployment in ("Ingress", "Rollout", "Judge", "Supervisor"):
        assert any(f"clawrl#{deployment}#" in name for name in names), (deployment, names)
    apps = httpx.get(f"{dashboard}/api/serve/applications/", timeout=30).json()["applications"]
    assert set(apps["clawrl"]["deployments"]) == {"Ingress", "Rollout", "Judge", "Supervisor"}
    runs = httpx.get(f"{dashboard}/api/train/v2/runs/v1", timeout=30).json()["train_runs"]
    assert [run["name"] for run in runs if run["status"] == "RUNNING"] == ["training"]


def _dashboard_line(live: Live) -> str:
    return next(line for line in live.log.read_text(errors="replace").splitlines() if "dashboard at" in line)
