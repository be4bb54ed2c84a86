"""`clawrl check`: is a deployment file right, and what does it need? Starts nothing.

A file is read in four steps, each of which speaks only when the one before was satisfied: YAML, Ray
Serve's own schema (whose unknown keys Serve would ignore in silence and we refuse), our ``args``
(`clawrl.config.Deployment`), and what no schema can say (`Deployment.problems`). Every problem is one
line: the path of the field, what is wrong, the remedy. What a file would take of the machine is its `Claims`,
to be compared with those of others (`clawrl.check.clashes`) and with what runs now (`clawrl.check.machine`).
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from rich.table import Table

from clawrl.check.clashes import OPEN_HOSTS, Claims, Listener, StateClaim
from clawrl.check.interpreters import look_at_interpreters
from clawrl.check.scaling import scaling_notes
from clawrl.serving.browsers import BrowserRules

if TYPE_CHECKING:
    from clawrl.config import Deployment

_OURS = "clawrl."
# Ray Serve's own.
_HTTP_HOST, _HTTP_PORT, _GRPC_PORT = "0.0.0.0", 8000, 9000
# Ray's meaning of `num_replicas: auto`.
_AUTO_REPLICAS = (1, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one actor asks of the cluster: between ``least`` and ``most`` replicas of ``cpus`` and ``gpus`` each."""

    actor: str
    least: int
    most: int
    cpus: float
    gpus: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """``problems`` keep the file from being started; ``notes`` say what could not be checked here.

    ``needs`` and ``claims`` are there once both schemas are satisfied, even then.
    """

    file: Path
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    claims: Claims | None = None


def check_file(file: Path) -> CheckReport:
    document, problems = _read(file)
    if not problems:
        problems = _serve_problems(document)
    if problems:
        return CheckReport(file=file, problems=tuple(problems))
    needs: list[Need] = []
    notes: list[str] = []
    states: list[StateClaim] = []
    for index, application in enumerate(document["applications"]):
        path = f"applications[{index}]"
        if not application["import_path"].startswith(_OURS):
            continue
        deployment, wrong = _deployment(path, application)
        problems += wrong
        if deployment is not None:
            found, wrong = _placement(path, application, deployment)
            needs += found
            problems += wrong
            states.append(_state(f"{path}.args", deployment))
            seen = look_at_interpreters(deployment)
            problems += [f"{path}.args.{line}" for line in seen.problems]
            notes += [f"{path}.args.{line}" for line in (*deployment.sizes().notes, *seen.notes)]
            notes += scaling_notes(path, application.get("deployments") or (), deployment)
        problems += _exposure_problems(document, path, application)
    if not needs and not problems:
        problems.append(f"applications: none is ours; one needs an import_path that starts with {_OURS!r}")
    claims = Claims(file=file, listeners=_listeners(document), states=tuple(states)) if states else None
    return CheckReport(file=file, problems=tuple(problems), notes=tuple(notes), needs=tuple(needs), claims=claims)


def render_placement(report: CheckReport) -> Table:
    """The placement as a table, totals last."""
    verdict = "well-formed, but cannot start here; it would need" if report.problems else "valid; it needs"
    table = Table(title=f"{report.file}: {verdict}", title_justify="left")
    for name in ("actor", "replicas", "CPUs each", "GPUs each", "note"):
        table.add_column(name, justify="right" if name in ("replicas", "CPUs each", "GPUs each") else "left")
    for need in report.needs:
        replicas = _range(need.least, need.most)
        table.add_row(need.actor, replicas, _figure(need.cpus), _figure(need.gpus), need.note)
    table.add_section()
    table.add_row("total", "", _total(report.needs, "cpus"), _total(report.needs, "gpus"), "of the whole cluster")
    return table


def _total(needs: Sequence[Need], resource: str) -> str:
    least, most = (sum(getattr(need, end) * getattr(need, resource) for need in needs) for end in ("least", "most"))
    return _range(least, most)


def _range(least: float, most: float) -> str:
    return _figure(least) if least == most else f"{_figure(least)}-{_figure(most)}"


def _figure(value: float) -> str:
    return f"{value:g}"


def _read(file: Path) -> tuple[dict[str, Any], list[str]]:
    try:
        document = yaml.safe_load(file.read_text())
    except OSError as error:
        return {}, [f"cannot be read: {error.strerror}; give the path of a file such as deployments/laptop.yaml"]
    except UnicodeDecodeError:
        return {}, ["is not text in UTF-8; a deployment file is YAML"]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        what = getattr(error, "problem", None) or "not YAML"
        return {}, [f"{where}: {what}; check quotes, colons and indentation there"]
    if not isinstance(document, dict):
        return {}, ["the top level is not a mapping; it needs `applications:`"]
    return document, []


def _serve_problems(document: Mapping[str, Any]) -> list[str]:
    from ray.serve.schema import ServeDeploySchema

    try:
        ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        return _lines(error, ServeDeploySchema, ())
    return _ignored_keys(document, ServeDeploySchema, "")


def _ignored_keys(value: Any, model: type[BaseModel], path: str) -> list[str]:
    """Keys that Serve would drop without a word, found by walking its own models."""
    problems: list[str] = []
    for key, inner in value.items():
        here = f"{path}.{key}" if path else str(key)
        field = model.model_fields.get(key)
        if field is None:
            problems.append(f"{here}: Ray Serve has no such key and would ignore it; {_suggest(key, model)}")
            continue
        nested = _model_in(field.annotation)
        items = inner if isinstance(inner, list) else [inner]
        for index, item in enumerate(items):
            if nested is not None and isinstance(item, dict):
                problems += _ignored_keys(item, nested, f"{here}[{index}]" if isinstance(inner, list) else here)
    return problems


def _deployment(path: str, application: Mapping[str, Any]) -> tuple["Deployment | None", list[str]]:
    from clawrl.config import Deployment

    try:
        deployment = Deployment.model_validate(application.get("args") or {})
    except ValidationError as error:
        return None, _lines(error, Deployment, (path, "args"))
    return deployment, [f"{path}.args: {problem}" for problem in deployment.problems()]


def _placement(path: str, application: Mapping[str, Any], deployment: "Deployment") -> tuple[list[Need], list[str]]:
    problems: list[str] = []
    overrides: Sequence[Mapping[str, Any]] = application.get("deployments") or ()
    needs = {row.actor: _need(row) for row in deployment.placement()}
    for index, override in enumerate(overrides):
        name = override["name"]
        if name not in needs:
            near = _nearest(name, needs) or f"the graph has {', '.join(needs)}"
            problems.append(f"{path}.deployments[{index}].name: no deployment is called {name!r}; {near}")
            continue
        needs[name] = _override(needs[name], override)
    return list(needs.values()), problems


def _need(row: Any) -> Need:
    return Need(
        actor=row.actor, least=row.replicas, most=row.replicas, cpus=row.num_cpus, gpus=row.num_gpus, note=row.note
    )


def _override(need: Need, override: Mapping[str, Any]) -> Need:
    """The placement after Serve's per-deployment overrides, which win over what the graph says."""
    least, most = need.least, need.most
    replicas, scaling = override.get("num_replicas"), override.get("autoscaling_config")
    if isinstance(replicas, int):
        least = most = replicas
    elif replicas == "auto" or scaling:
        scaling = scaling or {}
        default = _AUTO_REPLICAS if replicas == "auto" else (1, 1)
        least, most = scaling.get("min_replicas", default[0]), scaling.get("max_replicas", default[1])
    options = override.get("ray_actor_options") or {}
    cpus, gpus = options.get("num_cpus", need.cpus), options.get("num_gpus", need.gpus)
    if bundles := override.get("placement_group_bundles"):
        # A replica with bundles holds all of them, whatever its first actor asks for.
        cpus, gpus = (sum(bundle.get(kind, 0) for bundle in bundles) for kind in ("CPU", "GPU"))
    return Need(actor=need.actor, least=least, most=most, cpus=cpus, gpus=gpus, note=need.note)


def _listeners(document: Mapping[str, Any]) -> tuple[Listener, ...]:
    http, grpc = document.get("http_options") or {}, document.get("grpc_options") or {}
    found = []
    if document.get("proxy_location") != "Disabled":
        host, port = http.get("host", _HTTP_HOST), int(http.get("port", _HTTP_PORT))
        found.append(Listener(path="http_options.port", host=host, port=port))
    if "port" in grpc or grpc.get("grpc_servicer_functions"):
        # Serve's gRPC proxy knows no host.
        found.append(Listener(path="grpc_options.port", host="::", port=int(grpc.get("port", _GRPC_PORT))))
    return tuple(found)


def _state(path: str, deployment: "Deployment") -> StateClaim:
    home = deployment.model_copy(update={"state_dir": "."}).state_path.resolve()
    folder = deployment.state_path.resolve()
    root = home if folder.is_relative_to(home) else folder.parent
    key = deployment.serving.api_key
    return StateClaim(path=path, name=deployment.name, folder=folder, root=root, api_key=key)


def _exposure_problems(document: Mapping[str, Any], path: str, application: Mapping[str, Any]) -> list[str]:
    """In a YAML file Serve listens on every interface unless told otherwise."""
    host = (document.get("http_options") or {}).get("host")
    if host is None:
        return ["http_options.host: not set, and Ray Serve would listen on every interface; write `host: 127.0.0.1`"]
    serving = (application.get("args") or {}).get("serving")
    if host in OPEN_HOSTS and isinstance(serving, dict) and not serving.get("api_key"):
        return [
            f"{path}.args.serving.api_key: not set while http_options.host is {host!r}; set it to env:SOME_VARIABLE"
        ]
    if isinstance(host, str) and isinstance(serving, dict) and not serving.get("api_key"):
        port = (document.get("http_options") or {}).get("port", _HTTP_PORT)
        return _unnamed_host(host, port, path, serving.get("allowed_hosts"))
    return []


def _unnamed_host(host: str, port: Any, path: str, allowed: Any) -> list[str]:
    # What is no list of texts is another problem, which the config's own check names.
    named = [name for name in allowed if isinstance(name, str)] if isinstance(allowed, list) else []
    asked = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if BrowserRules.of(None, named).refusal("GET", "/", {"host": asked}) is None:
        return []
    return [
        f"{path}.args.serving.allowed_hosts: lacks http_options.host, and without a key requests for a name that is "
        f"not there are refused; add {host}, or set api_key to env:SOME_VARIABLE"
    ]


def _lines(error: ValidationError, model: type[BaseModel], prefix: tuple[str | int, ...]) -> list[str]:
    return [_line(dict(detail), model, prefix) for detail in error.errors()]


def _line(detail: Mapping[str, Any], model: type[BaseModel], prefix: tuple[str | int, ...]) -> str:
    loc: tuple[str | int, ...] = detail["loc"]
    kind, got = detail["type"], detail["input"]
    path = _path(prefix + loc)
    if kind == "extra_forbidden":
        return f"{path}: unknown key; {_suggest(str(loc[-1]), _model_at(model, loc[:-1]))}"
    if kind == "missing":
        return f"{path}: missing; add it"
    message = str(detail["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    shown = "" if isinstance(got, dict | list | BaseModel) else f"; got {got!r}, change it"
    return f"{path}: {message}{shown}"


def _path(loc: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.lstrip(".") or "file"


def _suggest(key: str, model: type[BaseModel] | None) -> str:
    if model is None:
        return "remove it"
    return _nearest(key, model.model_fields) or f"remove it, or use one of {', '.join(model.model_fields)}"


def _nearest(name: str, known: Mapping[str, Any]) -> str | None:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else None


def _model_at(model: type[BaseModel] | None, loc: Sequence[str | int]) -> type[BaseModel] | None:
    for part in loc:
        if model is None:
            return None
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first pydantic model inside an annotation such as ``list[Model] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)
