"""What a running deployment tells Prometheus, and what the dashboard asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from clawrl.metrics.catalogue import CATALOGUE
from clawrl.metrics.metric import Kind, Metric
from tests.live import REPOSITORY, Live

OBSERVABILITY = REPOSITORY / "deployments" / "observability"
DASHBOARD = OBSERVABILITY / "grafana" / "dashboards" / "clawrl.json"


def discovery_file(live: Live) -> Path:
    """Where Ray writes down which ports are to be scraped, as `prometheus.yml` reads it."""
    return next(live.folder.rglob("prom_metrics_service_discovery.json"))


def scrape(live: Live) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The samples of clawrl's own series, by name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for group in json.loads(discovery_file(live).read_text()):
        for target in group["targets"]:
            try:
                text = httpx.get(f"http://{target}/metrics", timeout=20).text
            except httpx.ConnectError:
                # Ray's autoscaler has one port for all clusters of a machine, and goes with the first of them.
                continue
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name.startswith("ray_clawrl_"):
                        found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def series_of(metric: Metric) -> str:
    """A series that is there once the metric has been told."""
    return metric.prometheus + ("_count" if metric.kind is Kind.HISTOGRAM else "")


@dataclass(frozen=True)
class Query:
    panel: str
    text: str


def queries(dashboard: Mapping[str, Any]) -> Iterator[Query]:
    """Every query of the dashboard, those of its variables included."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield Query(f"variable {variable['name']}", variable["query"]["query"])
    for panel in dashboard["panels"]:
        for inner in (panel, *panel.get("panels", ())):
            for target in inner.get("targets", ()):
                yield Query(inner["title"], target["expr"])


_NAME = re.compile(r"\b(ray_[a-z0-9_]+)\b(?:\s*\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
_GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
# Ray puts them on every series.
RAYS_OWN = {"SessionName", "NodeAddress", "WorkerId", "Component", "Version"}


def complaints(query: Query) -> list[str]:
    """What in a query no series of ours would ever answer: a name or a label that the catalogue does not know."""
    known = {}
    for metric in CATALOGUE:
        endings = ("_bucket", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        known |= {metric.prometheus + ending: metric for ending in endings}
    wrong, asked = [], []
    for name, matchers in _NAME.findall(query.text):
        metric = known.get(name)
        if metric is None:
            wrong.append(f"{query.panel}: there is no series {name}")
            continue
        asked.append(metric)
        for label, value in _LABEL.findall(matchers):
            if label in RAYS_OWN or (label == "le" and name.endswith("_bucket")):
                continue
            if label not in metric.tags:
                wrong.append(f"{query.panel}: {name} has no label {label}")
            elif metric.tags[label] and not re.search(r"[$.*|]", value) and value not in metric.tags[label]:
                wrong.append(f"{query.panel}: {name} has no {label} {value!r}")
    grouped = {label.strip() for labels in _GROUPED.findall(query.text) for label in labels.split(",")}
    has = RAYS_OWN | {"le", ""} | {tag for metric in asked for tag in metric.tags}
    wrong += [f"{query.panel}: nothing in it has a label {label}" for label in sorted(grouped - has)]
    if not asked:
        wrong.append(f"{query.panel}: asks for nothing of ours")
    return wrong
