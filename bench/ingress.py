"""What the HTTP side costs, as ratios within one run: against a bare engine, and against other gateways.

    python -m bench.ingress [--litellm PATH] [--seconds 8] [--rounds 3] [--parts gateways streams]

1. *Requests per second* with an engine that answers at once. Every gateway has one core to itself; the load and
   whatever answers have the others. Peers: LiteLLM's proxy, and FastAPI with httpx, as the reference implementation
   forwards. Serve is measured as it is by default, and with HAProxy and its throughput settings.
2. *The added latency*: the median with one connection, less that of asking the instant server itself.
3. *Streams*: time to the first token and from token to token of the laptop's model through ingress and replica, as
   ratios to the same engine in this process. Training is paused meanwhile.

Rounds go over all gateways in turn, so that a change of the machine's mood meets them all. Linux only (affinities).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from bench.ingress_load import Load, Streamed, Target, load, streamed
from bench.ingress_peers import KEY, MODEL
from clawrl.client import ApiClient
from clawrl.config import read_deployment
from clawrl.engine.protocol import GenerateRequest
from clawrl.engine.transformers import TransformersEngine
from clawrl.evaluation.demo_server import DemoServer, role_of
from clawrl.evaluation.simulated_user import HELD_OUT_QUESTIONS
from clawrl.messages import Message, SamplingParams
from clawrl.models import resolve
from clawrl.serving.template import ChatRenderer

REPOSITORY = Path(__file__).resolve().parent.parent
LAPTOP = REPOSITORY / "deployments" / "laptop.yaml"
DEFAULT, FAST = "clawrl", "clawrl, HAProxy and throughput"
SERVE_MODES: Mapping[str, Mapping[str, str]] = {
    DEFAULT: {},
    FAST: {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    },
}
GATEWAY_ROLES = ("Ingress", "ProxyActor", "HAProxyManager", "haproxy")
GATEWAY_CPU, CONNECTIONS, TOKENS = 0, 32, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One gateway once: ``busy`` with many connections, ``alone`` with one, ``streams`` with many."""

    busy: Load
    alone: Load
    streams: Load


async def one_round(target: Target, for_s: float) -> Round:
    return Round(
        busy=await load(target, stream=False, connections=CONNECTIONS, for_s=for_s),
        alone=await load(target, stream=False, connections=1, for_s=for_s / 2),
        streams=await load(target, stream=True, connections=8, for_s=for_s / 2),
    )


@contextmanager
def program(command: Sequence[str | Path], port: int, cpus: set[int], log: Path, **env: str) -> Iterator[str]:
    """A server as a child on these CPUs, once it listens; ends with the block."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **env},
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, child, log)
        yield url
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()


@contextmanager
def graph(document: Mapping[str, Any], folder: Path, mode: str) -> Iterator[tuple[DemoServer, str]]:
    """A deployment in one of Serve's modes, ready."""
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(dict(document)))
    (folder / "home").mkdir(exist_ok=True)
    server = DemoServer(file, folder / "home", folder / "serve.log")
    url = f"http://127.0.0.1:{document['http_options']['port']}"
    try:
        server.start({"PYTHONPATH": str(REPOSITORY), **SERVE_MODES[mode]})
        with ApiClient(url) as client:
            for reading in client.wait_ready(600.0):
                if not reading.ready and not server.alive:
                    raise SystemExit(f"the graph ended before it was ready:\n{server.log_tail()}")
        yield server, url
    finally:
        server.stop()


def pin(server: DemoServer, others: set[int]) -> None:
    """The HTTP side on its own CPU, with every thread; all else elsewhere."""
    for process in server.remember():
        try:
            role = role_of(process.cmdline())
            cpus = {GATEWAY_CPU} if any(role.startswith(name) for name in GATEWAY_ROLES) else others
            for thread in process.threads():
                os.sched_setaffinity(thread.id, cpus)
        except (psutil.Error, ProcessLookupError):
            continue


def document_of(port: int, import_path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(LAPTOP.read_text())
    found["http_options"]["port"] = port
    found["applications"][0]["import_path"] = import_path
    return found


def gateways(asked: argparse.Namespace, folder: Path) -> dict[str, list[Round]]:
    others = set(os.sched_getaffinity(0)) - {GATEWAY_CPU}
    if not others:
        raise SystemExit("two CPUs are needed: one for the gateway, one for the rest")
    os.sched_setaffinity(0, others)
    uvicorn = [sys.executable, "-m", "uvicorn", "--no-access-log", "--log-level", "warning", "--port"]
    rounds: dict[str, list[Round]] = {}
    with ExitStack() as stack:
        command = [*uvicorn, "18101", "bench.ingress_peers:instant"]
        instant = stack.enter_context(program(command, 18101, others, folder / "instant.log"))
        targets = {"none": Target(name="none", url=instant, key=KEY, model=MODEL)}
        command = [*uvicorn, "18102", "bench.ingress_peers:forwarder"]
        plain = program(command, 18102, {GATEWAY_CPU}, folder / "forwarder.log", INSTANT_URL=instant)
        targets["FastAPI and httpx"] = Target(name="forwarder", url=stack.enter_context(plain), key=KEY, model=MODEL)
        if asked.litellm is not None:
            config = folder / "litellm.yaml"
            config.write_text(yaml.safe_dump(_litellm_config(instant)))
            command = [asked.litellm, "--config", config, "--port", "18103", "--host", "127.0.0.1"]
            proxy = program(command, 18103, {GATEWAY_CPU}, folder / "litellm.log", LITELLM_LOCAL_MODEL_COST_MAP="True")
            targets["LiteLLM"] = Target(name="LiteLLM", url=stack.enter_context(proxy), key=KEY, model=MODEL)
        for number in range(asked.rounds):
            for name, target in targets.items():
                rounds.setdefault(name, []).append(asyncio.run(one_round(target, asked.seconds)))
            # One graph at a time: an idle one still takes its share of the CPUs.
            for mode in SERVE_MODES:
                place = folder / f"graph-{number}-{len(mode)}"
                place.mkdir()
                with graph(document_of(18104, "bench.ingress_graph:app"), place, mode) as (server, url):
                    pin(server, others)
                    target = Target(name=mode, url=url, key=KEY, model=_served_name())
                    rounds.setdefault(mode, []).append(asyncio.run(one_round(target, asked.seconds)))
            print(f"round {number + 1} of {asked.rounds}", flush=True)
    os.sched_setaffinity(0, others | {GATEWAY_CPU})
    return rounds


def engine_streams(asked: argparse.Namespace, folder: Path) -> dict[str, list[Streamed]]:
    """The laptop's model by itself and behind the ingress, alternating."""
    found: dict[str, list[Streamed]] = {}
    prompts = list(HELD_OUT_QUESTIONS)
    for number in range(asked.rounds):
        found.setdefault("bare engine", []).extend(asyncio.run(bare(prompts)))
        for mode in SERVE_MODES:
            place = folder / f"stream-{number}-{len(mode)}"
            place.mkdir()
            with graph(document_of(18105, "clawrl.graph:app"), place, mode) as (_, url):
                with ApiClient(url) as client:
                    _settled(client)
                    client.pause("a measurement")
                target = Target(name=mode, url=url, key=KEY, model=_served_name())
                found.setdefault(mode, []).extend(asyncio.run(streamed(target, prompts, TOKENS)))
        print(f"streams, round {number + 1} of {asked.rounds}", flush=True)
    return found


async def bare(prompts: Sequence[str]) -> list[Streamed]:
    """The same questions to the engine in this process, as the replica would ask it."""
    deployment = read_deployment(LAPTOP)
    engine = TransformersEngine(await asyncio.to_thread(resolve, deployment.policy.model), deployment.policy.engine)
    await engine.start()
    renderer = ChatRenderer(engine.tokenizer, deployment.policy.engine.context_length)
    found = []
    try:
        for number, prompt in enumerate(prompts):
            began = time.perf_counter()
            request = GenerateRequest(
                request_id=f"{number}",
                prompt_ids=np.asarray(renderer.render([Message(role="user", content=prompt)]), dtype=np.int32),
                sampling=SamplingParams(temperature=deployment.serving.sampling.temperature, max_tokens=TOKENS),
            )
            times, tokens = [], 0
            async for chunk in engine.generate(request):
                times.append(time.perf_counter())
                tokens += len(chunk.ids)
            if tokens > 1:
                gap = (times[-1] - times[0]) / (tokens - 1)
                found.append(Streamed(first_s=times[0] - began, gap_s=gap, tokens=tokens))
    finally:
        await engine.stop()
    return found


def report_gateways(rounds: Mapping[str, list[Round]]) -> dict[str, Any]:
    """Prints their table; returns its figures."""
    figures: dict[str, Any] = {}
    direct = _median([r.alone.p50_ms for r in rounds["none"]])
    peer = "LiteLLM" if "LiteLLM" in rounds else "FastAPI and httpx"
    print(f"\n| gateway | requests/s | against {peer} | added p50, ms | streamed answers/s | against {peer} |")
    print("|---|---|---|---|---|---|")
    for name, found in rounds.items():
        row = {
            "per_second": _median([r.busy.per_second for r in found]),
            "per_second_ratio": _median_ratio([r.busy.per_second for r in found], rounds[peer], "busy"),
            "added_p50_ms": _median([r.alone.p50_ms for r in found]) - direct,
            "streams_per_second": _median([r.streams.per_second for r in found]),
            "streams_ratio": _median_ratio([r.streams.per_second for r in found], rounds[peer], "streams"),
        }
        figures[name] = row
        print(
            f"| {name} | {row['per_second']:.0f} | {row['per_second_ratio']:.2f} | {row['added_p50_ms']:.2f} | "
            f"{row['streams_per_second']:.0f} | {row['streams_ratio']:.2f} |"
        )
    return figures


def report_streams(streams: Mapping[str, list[Streamed]]) -> dict[str, Any]:
    """Prints their table; returns its figures."""
    figures: dict[str, Any] = {}
    print("\n| stream | first token, ms | ratio | token to token, ms | ratio |\n|---|---|---|---|---|")
    first, gap = (_median([getattr(s, f) for s in streams["bare engine"]]) for f in ("first_s", "gap_s"))
    for name, answers in streams.items():
        mine = {f: _median([getattr(s, f) for s in answers]) for f in ("first_s", "gap_s")}
        figures[name] = mine | {"first_ratio": mine["first_s"] / first, "gap_ratio": mine["gap_s"] / gap}
        print(
            f"| {name} | {1000 * mine['first_s']:.1f} | {mine['first_s'] / first:.2f} | {1000 * mine['gap_s']:.1f} | "
            f"{mine['gap_s'] / gap:.2f} |"
        )
    return figures


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _median_ratio(values: Sequence[float], peer: Sequence[Round], load_name: str) -> float:
    """Round by round, since a machine has better and worse minutes."""
    return _median([v / getattr(p, load_name).per_second for v, p in zip(values, peer, strict=True)])


def _litellm_config(instant: str) -> dict[str, Any]:
    params = {"model": f"openai/{MODEL}", "api_base": f"{instant}/v1", "api_key": KEY}
    return {
        "model_list": [{"model_name": MODEL, "litellm_params": params}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False},
    }


def _served_name() -> str:
    return read_deployment(LAPTOP).serving.served_name


def _settled(client: ApiClient, timeout_s: float = 300.0) -> None:
    """Until the trainer has loaded, which it does beside the first answers."""
    deadline = time.monotonic() + timeout_s
    while client.status()["trainer"]["state"] != "running":
        if time.monotonic() > deadline:
            raise SystemExit(f"the trainer did not start within {timeout_s} s")
        time.sleep(1.0)
    time.sleep(5.0)


def _wait(url: str, child: subprocess.Popen[bytes], log: Path, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # it listens
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"{url} did not come up:\n{log.read_text(errors='replace')[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", type=Path, help="LiteLLM's program, with its proxy installed")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=("gateways", "streams"), default=["gateways", "streams"])
    parser.add_argument("--output", type=Path, default=REPOSITORY / "bench-output" / "ingress.json")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="clawrl-bench-", dir="/tmp"))
    try:
        figures = {}
        if "gateways" in asked.parts:
            figures["gateways"] = report_gateways(gateways(asked, folder))
        if "streams" in asked.parts:
            figures["streams"] = report_streams(engine_streams(asked, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(figures, indent=1))
    print(f"\nwritten to {asked.output}")


if __name__ == "__main__":
    main()
