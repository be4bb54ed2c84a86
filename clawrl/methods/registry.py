"""The one place that knows every method: a new method adds its file and one line here."""

from collections.abc import Callable
from typing import Any

from clawrl.methods.base import Method
from clawrl.methods.binary_rl import BinaryRL
from clawrl.methods.config import MethodConfig

_METHODS: dict[str, Callable[[Any], Method]] = {"binary_rl": BinaryRL}


def build_method(config: MethodConfig) -> Method:
    return _METHODS[config.name](config)
