"""transformers' continuous batching, set up for exact log-probs and live weight swaps.

The one place that knows its internals: which settings make its log-probs those of the plain softmax,
how a pause is entered and left, and which of its errors are fatal. Public knowledge of the library ends
at this file's border.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingTopKLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
)
from transformers.generation.continuous_batching.requests import FutureRequestState, GenerationOutput

from clawrl.engine.config import EngineConfig
from clawrl.engine.errors import EngineError
from clawrl.engine.grammar import Follower
from clawrl.messages import SamplingParams


class _TopK(ContinuousBatchingTopKLogitsWarper):
    """Skips the sort over the vocabulary when no request of the batch filters."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        if int(tensor_arg[: scores.size(0)].min()) >= scores.size(-1):
            return scores
        return super().__call__(scores, tensor_arg)


class _TopP(ContinuousBatchingTopPLogitsWarper):
    """Skips the sort over the vocabulary when no request of the batch filters."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        if float(tensor_arg[: scores.size(0)].view(dtype=torch.float32).min()) >= 1.0:
            return scores
        return super().__call__(scores, tensor_arg)


class _Grammar(ContinuousBatchingLogitsProcessor):
    """Leaves each request that has a `Follower` the tokens which that allows."""

    supported_kwargs: ClassVar[dict[str, type]] = {"grammar": Follower}
    ignored_kwargs: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._allowed: list[tuple[int, torch.Tensor]] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> torch.Tensor:
        # The argument is a number per row, too little for a mask: the masks wait here for the pass that comes next.
        states = [request.state for request in requests_with_new_token]
        self._allowed = [
            (row, torch.from_numpy(state.logit_processor_kwargs["grammar"].mask(state.generated_tokens)))
            for row, state in enumerate(states)
            if "grammar" in state.logit_processor_kwargs
        ]
        return torch.zeros(len(states), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        for row, allowed in self._allowed:
            scores[row].masked_fill_(~allowed.to(scores.device), -torch.inf)
        return scores


class _Nowhere(queue.Queue[Any]):
    """Where results go that nobody waits for any more: the last ones of cancelled requests."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        pass


class Batcher:
    """A running generation loop over ``model``. Results arrive on the event loop that submitted them."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig, *, eos_ids: Sequence[int]) -> None:
        self._vocab_size = model.get_input_embeddings().num_embeddings
        self._eos_ids = list(eos_ids)
        # A processor exists only if the defaults here need it, and only then may a request override it.
        defaults = GenerationConfig(
            do_sample=True, temperature=0.7, top_k=max(2, self._vocab_size - 1), top_p=0.9999, max_new_tokens=1
        )
        settings = ContinuousBatchingConfig(
            return_logprobs=True,
            per_request_processors=True,
            # Shared blocks would keep keys and values of an older version alive across a swap.
            allow_block_sharing=False,
            use_async_batching=False,
            # A captured graph would go on reading the tensors that a swap replaced, and flash attention, to which a
            # GPU with its kernels is switched unasked, captures by default; scoring, too, is by plain sdpa.
            use_cuda_graph=False,
            auto_switch_to_flash=False,
            page_size=config.page_size,
            num_blocks=config.kv_blocks,
            max_batch_tokens=config.max_batch_tokens,
            max_requests_per_batch=config.max_running_requests,
            # Admission (`Slots`) already keeps the cache from overflowing.
            safety_margin=0.0,
            seed=config.seed,
        )
        self._manager = model.init_continuous_batching(generation_config=defaults, continuous_batching_config=settings)
        self._manager.output_router.output_queue = _Nowhere()
        processors = self._manager.logit_processor
        swapped = {ContinuousBatchingTopKLogitsWarper: _TopK, ContinuousBatchingTopPLogitsWarper: _TopP}
        grammar = _Grammar()
        processors.logits_processor = LogitsProcessorList(
            [grammar, *(swapped.get(type(p), lambda same: same)(p) for p in processors.logits_processor)]
        )
        processors.tensors_required += 1
        processors.supported_keys.update(grammar.supported_kwargs)
        if {"temperature", "top_k", "top_p"} - set(processors.supported_keys):
            raise EngineError("this transformers release has no per-request temperature, top_k and top_p")

    def start(self) -> None:
        self._manager.start()

    def check(self) -> None:
        """Raise `EngineError` when the loop has died."""
        if not self._manager.is_running() or self._manager.background_thread_status.fatal_error is not None:
            raise EngineError(f"the generation loop died: {self._manager.background_thread_status.fatal_error}")

    def submit(
        self,
        request_id: str,
        ids: Sequence[int],
        sampling: SamplingParams,
        *,
        max_new_tokens: int,
        deliver: Callable[[GenerationOutput], None],
        grammar: Follower | None = None,
    ) -> None:
        """Queue a request. The handler is registered first, or its first token could be missed."""
        self._manager.register_result_handler(request_id, deliver)
        accepted = self._manager.add_request(
            list(ids),
            request_id=request_id,
            max_new_tokens=max_new_tokens,
            streaming=True,
            eos_token_id=self._eos_ids,
            **self._processor_arguments(sampling),
            **({} if grammar is None else {"grammar": grammar}),
        )
        if accepted is None:
            self.forget(request_id)
            self.check()
            raise EngineError("the generation loop refuses new requests")

    def cancel(self, request_id: str) -> None:
        """End a request. The loop delivers nothing for it from now on."""
        self.forget(request_id)
        self._manager.cancel_request(request_id)

    def forget(self, request_id: str) -> None:
        self._manager.output_router.result_handlers.pop(request_id, None)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Between two forward passes, with everything sampled so far already delivered.

        The pause is entered and left on one helper thread (its counter is per thread). The signal that it
        was entered takes the same road as results do, so it cannot overtake them.
        """
        loop = asyncio.get_running_loop()
        entered: asyncio.Future[None] = loop.create_future()
        leave = threading.Event()

        def hold() -> None:
            try:
                with self._manager.pause():
                    loop.call_soon_threadsafe(_resolve, entered, None)
                    leave.wait()
            except BaseException as error:
                loop.call_soon_threadsafe(_resolve, entered, error)

        helper = threading.Thread(target=hold, name="pause", daemon=True)
        helper.start()
        try:
            try:
                await entered
            except RuntimeError as error:
                raise EngineError(f"the generation loop cannot pause: {error}") from error
            yield
        finally:
            leave.set()

    def stop(self) -> None:
        if self._manager.is_running():
            self._manager.stop(block=True, timeout=10.0, hard_stop=True)

    def _processor_arguments(self, sampling: SamplingParams) -> dict[str, Any]:
        if sampling.greedy:
            return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
        top_k = sampling.top_k if 0 < sampling.top_k < self._vocab_size else self._vocab_size
        return {"temperature": float(sampling.temperature), "top_k": int(top_k), "top_p": float(sampling.top_p)}


def _resolve(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
