"""The HTTP side: OpenAI's chat completions in front, the rollout replicas behind, nothing kept in between.

Says whose request it is, renders its prompt, tells the coordinator that it came (beside generation, never
before it), and passes the replica's pieces on as they come. A replica that dies before the first piece
costs the client nothing but time; after it the stream ends in an error and the turn is recorded as failed.
Stateless: any number of ingress replicas may run.
"""

# No `from __future__ import annotations` here: the routes are copied without the names that only annotations use.
import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any, cast

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from transformers import AutoTokenizer

from clawrl.actors.calls import Background, Coordinator, CoordinatorAway
from clawrl.actors.generation import GenerationTask, Refused
from clawrl.actors.http_errors import install_error_handlers
from clawrl.config import Deployment
from clawrl.messages import FinishReason, Turn, TurnId
from clawrl.models import resolve
from clawrl.serving import errors
from clawrl.serving.auth import authenticate, resolve_key
from clawrl.serving.chat_request import decode_body, parse_chat_request
from clawrl.serving.chat_response import ChatReply
from clawrl.serving.chat_stream import Piece, event_stream, started, whole_answer
from clawrl.serving.feedback import parse_feedback, unknown_turn
from clawrl.serving.fields import text
from clawrl.serving.sessions import affinity_key, make_arrival, reply_hash
from clawrl.serving.template import ChatRenderer

log = logging.getLogger(__name__)
api = FastAPI(title="clawrl", docs_url=None, redoc_url=None, openapi_url=None)
install_error_handlers(api)
_ARRIVE_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 4.0
_TRIES = 5


def _refusal(refused: Refused) -> errors.ApiError:
    if refused.overloaded:
        return errors.overloaded()
    return errors.invalid_request(refused.message, refused.param)


async def _answers(call: Any) -> bool:
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            await call
    except Exception:
        return False
    return True


# Decorated here and not in the graph: Serve rewrites the signatures of the methods and copies them, with the names
# that they use, at this moment. So what they use stands above.
@serve.ingress(api)
class Ingress:
    def __init__(self, deployment: Deployment, rollout: DeploymentHandle, judge: DeploymentHandle) -> None:
        self._config = deployment.serving
        self._key = resolve_key(self._config.api_key, os.environ)
        self._rollout = rollout
        self._judge = judge
        self._coordinator = Coordinator(deployment.name)
        self._context_length = deployment.policy.engine.context_length
        tokenizer = AutoTokenizer.from_pretrained(resolve(deployment.policy.model))
        self._renderer = ChatRenderer(tokenizer, self._context_length)
        self._created = int(time.time())
        self._background = Background()

    # -- chat ---------------------------------------------------------------------------------------

    @api.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Response:
        owner = authenticate(request.headers.get("authorization"), self._key)
        asked = parse_chat_request(await self._body(request), self._config, request.headers)
        prompt_ids = self._renderer.render(asked.messages)
        arrival = make_arrival(
            turn_id=TurnId(uuid.uuid4().hex),
            messages=asked.messages,
            session=asked.session,
            owner=owner,
            kind=asked.kind,
            ends_session=asked.ends_session,
            arrived_at=time.time(),
            group=asked.group,
        )
        task = GenerationTask(
            arrival=arrival,
            prompt_ids=np.asarray(prompt_ids, dtype=np.int32),
            sampling=self._renderer.fit(asked.sampling, len(prompt_ids)),
            logprobs=asked.logprobs,
            overridden=bool(asked.overridden),
        )
        self._background.start(self._announce(task))
        pieces = self._pieces(task, affinity_key(asked.session, owner, asked.messages))
        reply = ChatReply(
            turn_id=arrival.turn_id, model=asked.model, created=int(arrival.arrived_at), session=asked.session
        )
        if not asked.stream:
            return JSONResponse(await whole_answer(reply, pieces, logprobs=asked.logprobs))
        return StreamingResponse(
            event_stream(reply, await started(pieces), include_usage=asked.include_usage),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Clawrl-Turn-Id": arrival.turn_id},
        )

    async def _pieces(self, task: GenerationTask, affinity: str) -> AsyncGenerator[Piece, None]:
        handle = self._rollout.options(stream=True, session_id=affinity)
        for attempt in range(_TRIES):
            stream = handle.generate.remote(task)
            begun = ended = False
            try:
                async for item in stream:
                    if isinstance(item, Refused):
                        raise _refusal(item)
                    begun = True
                    yield cast(Piece, item)
                ended = True
                return
            except BackPressureError:
                raise errors.overloaded() from None
            except (RayActorError, DeploymentUnavailableError) as error:
                if begun or attempt == _TRIES - 1:
                    self._background.start(self._record_lost(task))
                    raise errors.unavailable("The replica that was answering is gone. Please try again.") from error
                log.warning("turn %s: a replica died before its first token; asking another", task.arrival.turn_id)
                await asyncio.sleep(0.2 * 2**attempt)
            finally:
                if not ended:
                    stream.cancel()

    async def _announce(self, task: GenerationTask) -> None:
        try:
            await self._coordinator.ask("arrive", task.arrival, timeout_s=_ARRIVE_TIMEOUT_S)
        except CoordinatorAway as away:
            # The turn's record carries the arrival too, so that its evidence comes late rather than never.
            log.error("turn %s could not be announced: %s", task.arrival.turn_id, away)

    async def _record_lost(self, task: GenerationTask) -> None:
        """Nobody else is left to say that this turn failed."""
        now = time.time()
        turn = Turn(
            turn_id=task.arrival.turn_id,
            arrival=task.arrival,
            reply_hash=reply_hash(task.arrival.messages_hash, ""),
            response_text="",
            prompt_ids=task.prompt_ids,
            response_ids=np.empty(0, dtype=np.int32),
            response_logps=np.empty(0, dtype=np.float32),
            spans=(),
            sampling=task.sampling,
            finish_reason=FinishReason.ERROR,
            started_at=task.arrival.arrived_at,
            finished_at=now,
            replica="lost",
        )
        try:
            await self._coordinator.ask("record", turn, timeout_s=_ARRIVE_TIMEOUT_S)
        except CoordinatorAway as away:
            log.error("turn %s was lost with its replica and is not recorded: %s", turn.turn_id, away)

    async def _body(self, request: Request) -> bytes:
        """The whole body, given up on as soon as it is too long."""
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._config.max_body_bytes:
                raise errors.body_too_large(self._config.max_body_bytes)
            parts.append(part)
        return b"".join(parts)

    # -- about the server ---------------------------------------------------------------------------

    @api.get("/v1/models")
    async def models(self, request: Request) -> dict[str, Any]:
        authenticate(request.headers.get("authorization"), self._key)
        return {"object": "list", "data": [self._model_card()]}

    @api.get("/v1/models/{model_id:path}")
    async def model(self, request: Request, model_id: str) -> dict[str, Any]:
        authenticate(request.headers.get("authorization"), self._key)
        if model_id != self._config.served_name:
            raise errors.unknown_model(model_id, self._config.served_name)
        return self._model_card()

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self._config.served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "clawrl",
            "max_model_len": self._context_length,
        }

    @api.get("/healthz")
    async def healthz(self) -> dict[str, bool]:
        """This process is alive. Says nothing about the others."""
        return {"ok": True}

    @api.get("/readyz")
    async def readyz(self) -> JSONResponse:
        policy, judge, coordinator = await asyncio.gather(
            _answers(self._rollout.ready.remote()),
            _answers(self._judge.ready.remote()),
            _answers(self._coordinator.ask("ping", timeout_s=_PROBE_TIMEOUT_S)),
        )
        ready = policy and judge and coordinator
        parts = {"ready": ready, "policy": policy, "judge": judge, "coordinator": coordinator}
        return JSONResponse(parts, status_code=200 if ready else 503)

    @api.get("/clawrl/status")
    async def status(self, request: Request) -> Any:
        return await self._operate(request, "status")

    @api.get("/clawrl/turns")
    async def turns(self, request: Request, limit: int = 100) -> Any:
        if not 1 <= limit <= 10_000:
            raise errors.invalid_request("limit must be between 1 and 10000", "limit")
        return await self._operate(request, "turns", limit)

    @api.post("/clawrl/pause")
    async def pause(self, request: Request) -> dict[str, bool]:
        body = await self._body(request)
        fields = decode_body(body, self._config.max_body_bytes) if body else {}
        await self._operate(request, "pause", "operator", text(fields, "reason") or "")
        return {"paused": True}

    @api.post("/clawrl/resume")
    async def resume(self, request: Request) -> dict[str, Any]:
        return {"paused": False, "released": await self._operate(request, "resume")}

    @api.post("/v1/feedback")
    async def feedback(self, request: Request) -> dict[str, Any]:
        """What a person says of an answer; outranks the judge."""
        owner = authenticate(request.headers.get("authorization"), self._key)
        body = decode_body(await self._body(request), self._config.max_body_bytes)
        asked = parse_feedback(body, request.headers)
        taken = await self._operate(request, "feedback", asked, owner)
        if taken is None:
            raise unknown_turn(asked)
        return cast(dict[str, Any], taken)

    async def _operate(self, request: Request, method: str, *arguments: Any) -> Any:
        authenticate(request.headers.get("authorization"), self._key)
        try:
            return await self._coordinator.ask(method, *arguments, timeout_s=10.0)
        except CoordinatorAway:
            raise errors.unavailable("The coordinator is restarting. Please try again.") from None
