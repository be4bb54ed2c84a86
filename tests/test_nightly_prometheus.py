"""A real Prometheus scrapes a real graph by our configuration, and every query of the dashboard is put to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.live import GUARDS_FOR_RANDOM_WEIGHTS, Live, free_port, tiny_deployment
from tests.scraping import DASHBOARD, OBSERVABILITY, Query, discovery_file, queries
from tests.test_live_3_metrics import BY_CHANCE
from tests.traffic import Traffic

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.alone,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt-get install prometheus"),
]
_SCRAPE_S = 2


@contextmanager
def prometheus(live: Live) -> Iterator[str]:
    """Our own configuration, but for where Ray's temp folder is, and how often it looks."""
    config = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())
    config["global"]["scrape_interval"] = f"{_SCRAPE_S}s"
    (job,) = config["scrape_configs"]
    (found,) = job["file_sd_configs"]
    (file,) = found["files"]
    found["files"] = [str(discovery_file(live).parent / Path(file).name)]
    file = live.folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    with (live.folder / "prometheus.log").open("wb") as out:
        child = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={live.folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(20)


def ask(url: str, query: Query) -> list[Any]:
    text = query.text.replace("$__rate_interval", "1m").replace('"$session"', '".*"')
    if text.startswith("label_values("):
        series, label = text.removeprefix("label_values(").removesuffix(")").split(", ")
        reply = httpx.get(f"{url}/api/v1/label/{label}/values", params={"match[]": series}, timeout=30)
        return list(reply.raise_for_status().json()["data"])
    reply = httpx.get(f"{url}/api/v1/query", params={"query": text}, timeout=30)
    assert reply.status_code == 200, f"{query.panel}: {reply.text}"
    return list(reply.json()["data"]["result"])


def test_every_query_of_the_dashboard_is_answered_by_a_prometheus_that_scrapes_a_graph_that_learns(
    tiny_folder: Path,
) -> None:
    file = tiny_deployment(tiny_folder, free_port(), replicas=2, guards=GUARDS_FOR_RANDOM_WEIGHTS)
    asked = list(queries(json.loads(DASHBOARD.read_text())))
    # What cannot occur in this graph, and drops, of which there may be none.
    silent = {f"ray_clawrl_{name}" for name in BY_CHANCE} | {"ray_clawrl_turns_dropped"}
    # Rates need something to happen between two looks.
    with Live(file) as live, prometheus(live) as url, Traffic(live, pause_s=0.3):
        live.wait_for(lambda status: status["version"] >= 3, timeout_s=120, what="three published versions")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            empty = [query for query in asked if not ask(url, query)]
            missing = [query for query in empty if not any(name in query.text for name in silent)]
            if not missing:
                break
            time.sleep(2 * _SCRAPE_S)
        assert missing == []
        (told,) = ask(url, Query("recorded", "max(ray_clawrl_turns_recorded)"))
        assert float(told["value"][1]) > 0
        for query in asked:
            for series in ask(url, query):
                if isinstance(series, dict):
                    assert series["value"][1] not in ("+Inf", "-Inf"), query
