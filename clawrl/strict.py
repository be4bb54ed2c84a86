"""The base of every config class: unknown keys are errors, values are checked when they are read."""

from pydantic import BaseModel, ConfigDict


class StrictConfig(BaseModel):
    """A config block. A misspelt key, a wrong type or a value out of range is refused by its full path."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())
