"""From a kind and a path to a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clawrl.contracts.functions import FILTER_CHECKS, HINT_CHECKS, REWARD_CHECKS
from clawrl.contracts.loss import LOSS_CHECKS, LossRig
from clawrl.contracts.method import METHOD_CHECKS
from clawrl.contracts.report import Broken, Check, CheckRow, ContractReport, require, run_check
from clawrl.judging.rewards import RewardFunction
from clawrl.methods.base import Method
from clawrl.methods.registry import build_method, method_class
from clawrl.plugins import load


def run_contract(kind: str, path: str) -> ContractReport:
    """``kind`` is one of `KINDS`; ``path`` is package.module:name, or for a method also the name of a built-in one.

    Raises `ValueError` (a `PluginError` if it is the path) when there is nothing to check.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no contract for {kind!r}; choose one of {', '.join(KINDS)}")
    return ContractReport(kind=kind, path=path, rows=tuple(KINDS[kind](path)))


def it_is_made_from_its_settings(name: str) -> None:
    """The class's Config accepts its own name alone and refuses what it does not know; the class takes it."""
    config_class = method_class(name).Config
    refused = False
    try:
        config_class.model_validate({"name": name, "no_such_setting": 1})
    except ValueError:
        refused = True
    require(refused, "Config takes a setting that it does not know; derive it from clawrl.strict.StrictConfig")
    _made(name)


def _made(name: str) -> Method:
    return build_method(method_class(name).Config.model_validate({"name": name}))


def _method(name: str) -> list[CheckRow]:
    method_class(name)
    rows = [run_check(it_is_made_from_its_settings, name)]
    if rows[0].passed:
        method = _made(name)
        rows += _rows(METHOD_CHECKS, method)
        # A loss is fed with what the method's other parts return.
        if all(row.passed for row in rows):
            rows += _rows(LOSS_CHECKS, LossRig(method.loss, method, reference=method.needs_reference))
    return rows


def _loss(path: str) -> list[CheckRow]:
    """Tried with the columns of method combine; in earnest it gets those of the method it serves."""
    loss, method = load(path), _made("combine")
    wanted = bool(getattr(loss, "needs_reference", False))
    rows = [] if wanted else [run_check(it_works_without_a_reference, loss)]
    return rows + _rows(LOSS_CHECKS, LossRig(loss, method, reference=True))


def it_works_without_a_reference(loss: Any) -> None:
    """Where the method has no KL term there is no reference model, unless the loss asks for one."""
    try:
        rig = LossRig(loss, _made("combine"), reference=False)
        rig.run(rig.samples)
    except Exception as error:
        raise Broken(
            f"{type(error).__name__}: {error}; a loss that reads ref_logp_BT needs the attribute needs_reference = True"
        ) from error


def _rows(checks: Sequence[Check], subject: Any) -> list[CheckRow]:
    return [run_check(check, subject) for check in checks]


KINDS: dict[str, Callable[[str], list[CheckRow]]] = {
    "method": _method,
    "loss": _loss,
    "reward": lambda path: _rows(REWARD_CHECKS, RewardFunction(load(path), path)),
    "hints": lambda path: _rows(HINT_CHECKS, load(path)),
    "filter": lambda path: _rows(FILTER_CHECKS, load(path)),
}
