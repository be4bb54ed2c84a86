"""The files for Prometheus and Grafana: what they ask for is what there is."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from clawrl.metrics.catalogue import CATALOGUE
from clawrl.metrics.metric import Group
from tests.scraping import DASHBOARD, OBSERVABILITY, Query, complaints, queries


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text()))


def test_every_query_of_the_dashboard_asks_for_names_and_labels_of_the_catalogue(dashboard: dict[str, Any]) -> None:
    asked = list(queries(dashboard))
    assert len(asked) > 50
    assert [why for query in asked for why in complaints(query)] == []


@pytest.mark.parametrize(
    "text",
    [
        "sum(ray_clawrl_request_total)",
        "sum(rate(ray_clawrl_requests[5m]))",
        'sum(ray_clawrl_turns{phase="queued"})',
        'sum(ray_clawrl_turns{state="lost"})',
        "sum by (reason) (ray_clawrl_turns)",
        "histogram_quantile(0.5, rate(ray_clawrl_queue_depth_bucket[5m]))",
        "sum(rate(ray_clawrl_step_seconds_sum[5m]))",
        "up",
    ],
)
def test_a_query_that_nothing_would_answer_is_found(text: str) -> None:
    assert complaints(Query("panel", text)) != []


def test_every_metric_is_on_the_dashboard_and_every_group_has_its_row(dashboard: dict[str, Any]) -> None:
    text = " ".join(query.text for query in queries(dashboard))
    assert [metric.name for metric in CATALOGUE if metric.prometheus not in text] == []
    rows = [panel["title"].lower() for panel in dashboard["panels"] if panel["type"] == "row"]
    assert [group for group in Group if group.value not in rows] == []


def test_panels_have_ids_and_places_of_their_own_and_choose_their_prometheus(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}" and panel["targets"], panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_histograms_are_asked_for_quantiles_and_never_for_sums(dashboard: dict[str, Any]) -> None:
    """What Ray passes on of a histogram's sum is made of the middles of its buckets."""
    assert not [query for query in queries(dashboard) if "_sum" in query.text]


def test_grafana_finds_the_dashboard_and_the_prometheus_that_it_names(dashboard: dict[str, Any]) -> None:
    provisioning = OBSERVABILITY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "clawrl.yml").read_text())["providers"]
    assert source["type"] == "prometheus" and source["isDefault"]
    assert provider["options"]["path"] == "$CLAWRL_DASHBOARDS" and DASHBOARD.parent.name == "dashboards"
    scrape_interval = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape_interval
    assert dashboard["uid"] == "clawrl"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with prometheus")
def test_promtool_finds_nothing_wrong_with_the_configuration() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", str(OBSERVABILITY / "prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
