"""An ingress without Ray: before replicas that follow a script and a coordinator that only listens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import ray.serve.context

from clawrl.actors import ingress as module
from clawrl.actors.generation import GenerationTask, Refused
from clawrl.messages import FinishReason, Message, VersionSpan
from clawrl.serving.pieces import FinishPiece, Piece, Usage

# Serve's wrapper around it wants a replica to run in.
Ingress: Any = module.Ingress.__mro__[1]

Script = Callable[[GenerationTask], AsyncIterator[Piece | Refused]]


@dataclass
class Stream:
    pieces: AsyncIterator[Piece | Refused]
    cancelled: bool = False

    def __aiter__(self) -> AsyncIterator[Piece | Refused]:
        return self.pieces

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Replicas:
    """A handle whose calls are answered by ``scripts`` in turn, the last one again and again."""

    scripts: list[Script]
    streams: list[Stream] = field(default_factory=list)
    made_for: list[str] = field(default_factory=list)

    def options(self, **_: Any) -> Replicas:
        return self

    @property
    def generate(self) -> Replicas:
        return self

    def remote(self, task: GenerationTask) -> Stream:
        script = self.scripts[min(len(self.streams), len(self.scripts) - 1)]
        self.made_for.append(ray.serve.context._get_serve_request_context()._internal_request_id)
        self.streams.append(Stream(script(task)))
        return self.streams[-1]


@dataclass
class Coordinator:
    asked: list[tuple[str, Any]] = field(default_factory=list)
    floor: int = 0

    async def ask(self, method: str, *arguments: Any, timeout_s: float) -> int | None:
        self.asked.append((method, arguments[0]))
        return self.floor if method == "arrive" else None

    def of(self, method: str) -> list[Any]:
        return [argument for name, argument in self.asked if name == method]


def finish(text: str) -> FinishPiece:
    return FinishPiece(
        finish_reason=FinishReason.STOP,
        spans=(VersionSpan(start=0, end=1, version=3),),
        version=3,
        usage=Usage(prompt_tokens=1, completion_tokens=1),
        message=Message(role="assistant", content=text),
    )
