"""What a client wants, whatever dialect it speaks: the one request that the rest of the system knows."""

from __future__ import annotations

from dataclasses import dataclass

from clawrl.messages import NO_INPUTS, Message, SamplingParams, TemplateInputs
from clawrl.serving.sessions import SessionFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether tools may be called, must be, and whether it must be the one called ``name``."""

    allowed: bool = True
    required: bool = False
    name: str | None = None


ANY_TOOL = ToolChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """``answers`` to the same prompt are wanted, each with its log-probs if ``logprobs``.

    ``overridden`` names the client's sampling values that the operator replaced, ``schema_field`` the field of the
    client's that asked for JSON of a schema.
    """

    model: str
    messages: tuple[Message, ...]
    sampling: SamplingParams
    facts: SessionFacts
    inputs: TemplateInputs = NO_INPUTS
    tool_choice: ToolChoice = ANY_TOOL
    overridden: tuple[str, ...] = ()
    schema_field: str | None = None
    answers: int = 1
    stream: bool = False
    logprobs: bool = False
