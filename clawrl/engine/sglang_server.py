"""SGLang as a child process: started on a port of its own, watched, and never left behind.

The port is held from before the child starts: a socket that is bound but does not listen keeps it from everybody but
those who bind as servers do, which the child does minutes later. A key made for each child tells its server from any
other that might answer there, and keeps out whoever cannot see its command line. `sglang_keeper` ends the child with
whoever holds this object, however that one ends. What the child prints goes on to our own standard error, where Ray
finds it; its last lines are in the error of a failed start.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from clawrl.engine import sglang_keeper
from clawrl.engine.config import EngineConfig
from clawrl.engine.errors import EngineError
from clawrl.engine.sglang_api import SglangApi, SglangError
from clawrl.messages import AdapterShape

HOST = "127.0.0.1"
_POLL_S = 0.25
_TAIL_LINES = 60
# Without CUDA: no kernels of its own, no graphs, and a scheduler that sleeps when there is nothing to do.
# The one that serves and none at all, and two for answers that end under the version that they began with.
_ADAPTERS_AT_ONCE = 4
_CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-overlap-schedule", "--disable-cuda-graph", "--sleep-on-idle"),
)


class SglangServer:
    """One child. `api` talks to it; `start` returns when it can answer."""

    def __init__(self, folder: Path, config: EngineConfig, adapters: AdapterShape | None = None) -> None:
        self._config = config
        self._key = secrets.token_urlsafe(24)
        self._port = _hold_port()
        port = int(self._port.getsockname()[1])
        interpreter = config.sglang.interpreter(os.environ)
        self._command = [interpreter, *launch_arguments(folder, config, port, self._key, adapters)]
        self.api = SglangApi(f"http://{HOST}:{port}", self._key)
        self._said: deque[str] = deque(maxlen=_TAIL_LINES)
        self._keeper: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Raises `EngineError` when the child ends or does not answer within ``boot_timeout_s``."""
        limit = self._config.sglang.boot_timeout_s
        self._launch()
        try:
            async with asyncio.timeout(limit):
                while not await self._answers():
                    self.check()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            tail = self.tail()
            await self.stop()
            raise EngineError(
                f"SGLang did not start within engine.sglang.boot_timeout_s {limit:g}; raise it, or see its last "
                f"words:\n{tail}"
            ) from None
        except EngineError:
            await self.stop()
            raise

    def check(self) -> None:
        """Raises `EngineError` once the child has ended."""
        if self._keeper is None:
            raise EngineError("SGLang has not been started")
        status = self._keeper.poll()
        if status is not None:
            # It is gone, and so its output ends; what it said last is what one wants to know.
            self._listener.join(timeout=1.0)
            raise EngineError(f"SGLang ended with status {status}; its last words:\n{self.tail()}")

    @property
    def pid(self) -> int | None:
        """The keeper's; the child and all of its processes end with it."""
        return self._keeper.pid if self._keeper else None

    async def stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            await asyncio.to_thread(keeper.wait)
        await self.api.close()
        self._port.close()

    def tail(self) -> str:
        return "".join(self._said)

    def _launch(self) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, sglang_keeper.__file__, *self._command],
            env=launch_environment(self._config, os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        output = (self._keeper.stdout,)
        self._listener = threading.Thread(target=self._listen, args=output, name="sglang output", daemon=True)
        self._listener.start()

    def _listen(self, output: IO[bytes]) -> None:
        for line in output:
            text = line.decode(errors="replace")
            self._said.append(text)
            sys.stderr.write(text)

    async def _answers(self) -> bool:
        try:
            return await self.api.ready()
        except SglangError:
            return False


def launch_arguments(
    folder: Path, config: EngineConfig, port: int, key: str, adapters: AdapterShape | None = None
) -> list[str]:
    """What follows the interpreter: one flag for each setting of ours, then the operator's own."""
    flags = [
        *("-m", "sglang.launch_server", "--model-path", str(folder), "--host", HOST, "--port", str(port)),
        # In one word: a key may begin with a dash.
        *(f"--api-key={key}", "--weight-version", "0", "--dtype", config.dtype),
        *("--context-length", str(config.context_length), "--tp-size", str(config.tp_size)),
        *("--max-running-requests", str(config.max_running_requests)),
        *("--chunked-prefill-size", str(max(config.max_batch_tokens, config.page_size))),
        *("--max-total-tokens", str(config.kv_blocks * config.page_size)),
        # A line for each batch would drown what matters.
        *("--log-level", "warning"),
        # Each event brings only what is new, or a long answer costs the square of its length.
        *("--incremental-streaming-output", "--skip-server-warmup"),
        # As models are used to seeing JSON; free whitespace lets a small one go on with it for ever.
        "--constrained-json-disable-any-whitespace",
    ]
    if config.device == "cpu":
        flags += _CPU_FLAGS
    else:
        flags += ["--mem-fraction-static", str(config.sglang.memory_fraction)]
    if adapters is not None:
        flags += ["--enable-lora", "--max-lora-rank", str(adapters.rank), "--lora-target-modules", *adapters.targets]
        flags += ["--max-loras-per-batch", str(_ADAPTERS_AT_ONCE)]
        flags += ["--lora-backend", "torch_native"] if config.device == "cpu" else []
    if config.seed is not None:
        flags += ["--random-seed", str(config.seed)]
    return [*flags, *config.sglang.extra_args]


def launch_environment(config: EngineConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    # Paths of our interpreter would make the child import our packages.
    environment = {name: value for name, value in inherited.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # Torch threads of a child that shares its cores; on GPUs nothing depends on it.
    environment["OMP_NUM_THREADS"] = str(config.threads)
    if config.device == "cpu":
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
        if config.tp_size > 1:
            environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in _cores(config.tp_size))
    return {**environment, **config.sglang.env}


def _cores(ranks: int) -> Sequence[int]:
    available = sorted(os.sched_getaffinity(0))
    return [available[rank % len(available)] for rank in range(ranks)]


def _hold_port() -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    return held
