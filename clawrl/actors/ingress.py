"""The HTTP side: three dialects in front, the rollout replicas behind, nothing kept in between.

Says whose request it is, tells the coordinator that it came (beside generation, never before it), and passes
the replica's pieces on as they come. A replica that dies before the client has heard anything costs it nothing but
time; after that the stream ends in an error and the turn is recorded as failed.
Stateless: any number of ingress replicas may run.
"""

# No `from __future__ import annotations` here: the routes are copied without the names that only annotations use.
import asyncio
import contextvars
import logging
import os
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from clawrl.actors.browser_guard import BrowserGuard, current_rules
from clawrl.actors.calls import Background, Coordinator, CoordinatorAway
from clawrl.actors.console_routes import ConsoleRoutes
from clawrl.actors.console_routes import router as console_router
from clawrl.actors.generation import GenerationTask, Refused, another_turn, tasks_for
from clawrl.actors.http_errors import install_error_handlers
from clawrl.actors.operator_routes import OperatorRoutes, router
from clawrl.actors.probing import PROBE_TIMEOUT_S, answers
from clawrl.actors.ray_metrics import current_sink, sink_of
from clawrl.config import Deployment
from clawrl.console.files import ConsoleFiles
from clawrl.engine.errors import EngineError
from clawrl.inspection.asked import session_named
from clawrl.messages import NOTHING_SAID, FinishReason, Turn
from clawrl.metrics.http import RequestMeter
from clawrl.privacy.logs import redact_logs_by
from clawrl.serving import errors
from clawrl.serving.auth import Identity, KeyRing
from clawrl.serving.body import decode_body, whole_body
from clawrl.serving.browsers import BrowserRules
from clawrl.serving.dialects import chat, messages, responses
from clawrl.serving.dialects.base import AnswerFacts, Asked
from clawrl.serving.feedback import parse_feedback, unknown_turn
from clawrl.serving.fields import JsonObject
from clawrl.serving.openapi import description
from clawrl.serving.pieces import Piece, alive, merged, started, whole_answers
from clawrl.serving.sessions import affinity_key, reply_hash

log = logging.getLogger(__name__)
api = FastAPI(title="clawrl", docs_url=None, redoc_url=None, openapi_url=None)
install_error_handlers(api)
api.add_middleware(BrowserGuard, rules=current_rules)
api.add_middleware(RequestMeter, sink=current_sink)
api.include_router(router)
api.include_router(console_router)
_ARRIVE_TIMEOUT_S = 60.0
# Twelve seconds of pauses in all: Serve sends requests to a replica with a dead engine until its third failed check.
_TRIES, _FIRST_PAUSE_S = 6, 0.4


# Decorated here and not in the graph: Serve rewrites the signatures of the methods and copies them, with the names
# that they use, at this moment. So what they use stands above.
@serve.ingress(api)
class Ingress(OperatorRoutes, ConsoleRoutes):
    def __init__(self, deployment: Deployment, rollout: DeploymentHandle, judge: DeploymentHandle) -> None:
        self._config = deployment.serving
        sink_of(deployment.metrics)
        self._keys = KeyRing(self._config, os.environ)
        self.browser_rules = BrowserRules.of(self._config.api_key, self._config.allowed_hosts)
        redact_logs_by(deployment.privacy.redaction)
        self._console = ConsoleFiles(self._config.console.enabled)
        self._rollout = rollout
        self._judge = judge
        self._coordinator = Coordinator(deployment.name)
        self._context_length = deployment.policy.engine.context_length
        self._created = int(time.time())
        self._background = Background()
        self._floor = 0

    # -- answers, in three dialects -----------------------------------------------------------------

    @api.post("/v1/chat/completions")
    async def chat_completions(self, request: Request) -> Response:
        identity = self._keys.admitted(request.headers)
        return await self._answer(chat.read(await self._json(request), request.headers, self._config), identity)

    @api.post("/v1/responses")
    async def openai_responses(self, request: Request) -> Response:
        identity = self._keys.admitted(request.headers)
        asked = responses.read(await self._json(request), request.headers, self._config)
        if asked.previous is not None:
            past = await self._ask_coordinator("answered", asked.previous, identity.owner)
            if past is None:
                raise errors.unknown_response(asked.previous)
            asked = responses.with_history(asked, *past)
        return await self._answer(asked, identity)

    @api.post("/v1/messages")
    async def anthropic_messages(self, request: Request) -> Response:
        identity = self._keys.admitted(request.headers)
        return await self._answer(messages.read(await self._json(request), request.headers, self._config), identity)

    @api.post("/v1/messages/count_tokens")
    async def count_tokens(self, request: Request) -> dict[str, int]:
        self._keys.admitted(request.headers)
        asked, inputs = messages.read_count(await self._json(request), self._config)
        try:
            counted = await self._rollout.count_tokens.remote(asked, inputs)
        except (RayActorError, DeploymentUnavailableError):
            raise errors.unavailable("The replica that was counting is gone. Please try again.") from None
        if isinstance(counted, Refused):
            raise counted.error
        return {"input_tokens": counted}

    async def _answer(self, asked: Asked, identity: Identity) -> Response:
        wanted, now = asked.request, time.time()
        tasks = tasks_for(wanted, identity.owner, now, self._floor, may_train=identity.may_train)
        for task in tasks:
            self._background.start(self._announce(task))
        affinity = affinity_key(wanted.facts.session, identity.owner, wanted.messages)
        answers = range(wanted.answers)
        pieces = merged([alive(self._pieces(tasks, answer, affinity), self._config.heartbeat_s) for answer in answers])

        def facts() -> AnswerFacts:
            turn_ids = tuple(task.arrival.turn_id for task in tasks)
            return AnswerFacts(turn_ids=turn_ids, model=wanted.model, created=int(now), session=wanted.facts.session)

        begun = await started(pieces)
        if not wanted.stream:
            whole = await whole_answers(begun, wanted.answers)
            # Not before: an answer whose replica died became another turn.
            told = facts()
            return JSONResponse(asked.writer(told).whole(whole), headers=told.headers)
        told = facts()
        headers = told.headers | {"Cache-Control": "no-cache"}
        return StreamingResponse(asked.writer(told).stream(begun), media_type="text/event-stream", headers=headers)

    async def _pieces(self, tasks: list[GenerationTask], answer: int, affinity: str) -> AsyncGenerator[Piece, None]:
        """The pieces of one answer. Those of an answer that is not streamed come when the last one is here."""
        handle = self._rollout.options(stream=True, session_id=affinity)
        for attempt in range(_TRIES):
            task = tasks[answer]
            # Serve's router tells calls apart by the HTTP request that they are made for, which it reads from the
            # context: of several at once for one request it would lose all but one.
            stream = contextvars.Context().run(handle.generate.remote, task)
            begun = ended = False
            held: list[Piece] = []
            try:
                async for item in stream:
                    if isinstance(item, Refused):
                        raise item.error
                    begun = True
                    if task.streamed:
                        yield cast(Piece, item)
                    else:
                        held.append(cast(Piece, item))
                ended = True
                for piece in held:
                    yield piece
                return
            except BackPressureError:
                raise errors.overloaded() from None
            except (RayActorError, DeploymentUnavailableError, EngineError) as error:
                is_last = (begun and task.streamed) or attempt == _TRIES - 1
                # Nothing, where the replica had it recorded before it died.
                self._background.start(self._record_lost(task))
                if is_last:
                    raise errors.unavailable("The replica that was answering is gone. Please try again.") from error
                log.warning("turn %s: a replica died before anybody heard it; asking another", task.arrival.turn_id)
                # The dead replica may have had this turn recorded (an empty answer before anything of it was heard),
                # and another one will answer something else.
                tasks[answer] = another_turn(task)
                self._background.start(self._announce(tasks[answer]))
                await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
            finally:
                if not ended:
                    stream.cancel()

    async def _announce(self, task: GenerationTask) -> None:
        try:
            floor = await self._coordinator.ask("arrive", task.arrival, timeout_s=_ARRIVE_TIMEOUT_S)
            self._floor = max(self._floor, floor)
        except Exception as error:
            # The turn's record carries the arrival too, so that its evidence comes late rather than never. What an
            # error of the ledger says may quote the request.
            why = str(error) if isinstance(error, CoordinatorAway) else type(error).__name__
            log.error("turn %s could not be announced: %s", task.arrival.turn_id, why)

    async def _record_lost(self, task: GenerationTask) -> None:
        """Nobody else is left to say that this turn failed."""
        now = time.time()
        turn = Turn(
            turn_id=task.arrival.turn_id,
            arrival=task.arrival,
            reply_hash=reply_hash(task.arrival.messages_hash, NOTHING_SAID),
            response_text="",
            prompt_ids=np.empty(0, dtype=np.int32),
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

    async def _json(self, request: Request) -> JsonObject:
        limit = self._config.max_body_bytes
        return decode_body(await whole_body(request.stream(), limit), limit)

    # -- about the server ---------------------------------------------------------------------------

    @api.get("/v1/models")
    async def models(self, request: Request) -> dict[str, Any]:
        self._keys.identify(request.headers)
        return {"object": "list", "data": [self._model_card()]}

    @api.get("/v1/models/{model_id:path}")
    async def model(self, request: Request, model_id: str) -> dict[str, Any]:
        self._keys.identify(request.headers)
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

    @api.get("/openapi.json")
    async def openapi(self) -> dict[str, Any]:
        return description(self._config.served_name)

    @api.get("/healthz")
    async def healthz(self) -> dict[str, bool]:
        """This process is alive. Says nothing about the others."""
        return {"ok": True}

    @api.get("/readyz")
    async def readyz(self) -> JSONResponse:
        policy, judge, coordinator = await asyncio.gather(
            answers(self._rollout.ready.remote()),
            answers(self._judge.ready.remote()),
            answers(self._coordinator.ask("ping", timeout_s=PROBE_TIMEOUT_S)),
        )
        ready = policy and judge and coordinator
        parts = {"ready": ready, "policy": policy, "judge": judge, "coordinator": coordinator}
        return JSONResponse(parts, status_code=200 if ready else 503)

    @api.post("/v1/feedback")
    async def feedback(self, request: Request) -> dict[str, Any]:
        """What a person says of an answer; outranks the judge."""
        identity = self._keys.identify(request.headers)
        asked = parse_feedback(await self._json(request), request.headers)
        taken = await self._ask_coordinator("feedback", asked, identity.owner)
        if taken is None:
            raise unknown_turn(asked)
        return cast(dict[str, Any], taken)

    @api.post("/clawrl/sessions/{session:path}/done")
    async def session_done(self, request: Request, session: str) -> dict[str, Any]:
        """No more will be said in this session; its last answer waits for no more evidence."""
        return await self._end_session(request, session)

    @api.post("/clawrl/session/done")
    async def session_done_by_query(self, request: Request) -> dict[str, Any]:
        """The same for any name: ``..`` is none in a path, which clients shorten."""
        self._keys.identify(request.headers)
        return await self._end_session(request, session_named(request.query_params))

    async def _end_session(self, request: Request, session: str) -> dict[str, Any]:
        identity = self._keys.identify(request.headers)
        ended = await self._ask_coordinator("end_session", identity.owner, session)
        return {"session": session, "ended_turns": ended}
