"""SGLang as a child: it is watched, told apart from others, and never left behind. The child here is a small script."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clawrl.engine import sglang_keeper
from clawrl.engine.config import EngineConfig, SglangConfig
from clawrl.engine.errors import EngineError
from clawrl.engine.sglang_server import HOST, SglangServer, launch_arguments, launch_environment

KEEPER = sglang_keeper.__file__


def runs(pid: int) -> bool:
    """Neither gone nor waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(true: Callable[[], bool], within_s: float = 60.0) -> bool:
    end = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# -- the keeper ---------------------------------------------------------------------------------------------------

# A command with a child of its own, which watches its parent as SGLang's do; both write down who they are.
FAMILY = """
import ctypes, os, signal, sys, time
folder = sys.argv[1]
if os.fork() == 0 and len(sys.argv) > 2:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
with open(os.path.join(folder, f"{os.getpid()}.tmp"), "w"):
    pass
os.rename(os.path.join(folder, f"{os.getpid()}.tmp"), os.path.join(folder, f"{os.getpid()}.pid"))
time.sleep(120)
"""
# Holds the keeper's input as `SglangServer` does.
HOLDER = """
import subprocess, sys, time
keeper = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
print(keeper.pid, flush=True)
time.sleep(120)
"""


def family(folder: Path) -> list[int]:
    """The command and its child, once both run."""
    assert eventually(lambda: len(list(folder.glob("*.pid"))) == 2)
    members = [int(path.stem) for path in folder.glob("*.pid")]
    assert all(map(runs, members))
    return members


def kept(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, KEEPER, *command], stdin=subprocess.PIPE, start_new_session=True)


def test_the_command_and_its_children_end_when_the_input_of_the_keeper_closes(tmp_path: Path) -> None:
    keeper = kept(sys.executable, "-c", FAMILY, str(tmp_path))
    members = family(tmp_path)
    assert keeper.stdin is not None
    keeper.stdin.close()
    assert keeper.wait(60) == 128 + signal.SIGKILL
    assert eventually(lambda: not any(map(runs, members)))


def test_the_command_and_its_children_end_when_the_holder_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, KEEPER, sys.executable, "-c", FAMILY, str(tmp_path)]
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, *command], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    keeper = int(holder.stdout.readline())
    members = family(tmp_path)
    holder.kill()
    holder.wait()
    assert eventually(lambda: not any(map(runs, [keeper, *members])))


def test_the_command_ends_when_the_keeper_is_killed_and_takes_those_along_that_watch_it(tmp_path: Path) -> None:
    keeper = kept(sys.executable, "-c", FAMILY, str(tmp_path), "watches")
    members = family(tmp_path)
    keeper.kill()
    keeper.wait()
    assert eventually(lambda: not any(map(runs, members)))


def test_a_keeper_that_is_asked_to_end_ends_its_command(tmp_path: Path) -> None:
    keeper = kept(sys.executable, "-c", FAMILY, str(tmp_path))
    members = family(tmp_path)
    keeper.terminate()
    assert keeper.wait(60) == 128 + signal.SIGKILL
    assert eventually(lambda: not any(map(runs, members)))


def test_what_a_command_leaves_behind_ends_with_it() -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '120'], stdout=subprocess.DEVNULL).pid)"
    keeper = subprocess.Popen(
        [sys.executable, KEEPER, sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert keeper.wait(60) == 0
    assert keeper.stdout is not None
    left = int(keeper.stdout.read())
    assert eventually(lambda: not runs(left))


@pytest.mark.parametrize(
    ("script", "status"), [("raise SystemExit(3)", 3), ("pass", 0), ("import os; os.kill(os.getpid(), 15)", 128 + 15)]
)
def test_the_keeper_passes_on_how_the_command_ended(script: str, status: int) -> None:
    assert kept(sys.executable, "-c", script).wait(60) == status


# -- the server ---------------------------------------------------------------------------------------------------


def interpreter(folder: Path, body: str) -> str:
    """What ``engine.sglang.python`` names: it is given the arguments of SGLang, and does ``body``."""
    file = folder / "python-with-sglang"
    file.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}")
    file.chmod(0o755)
    return str(file)


# Answers /ready to those who know the key, and names itself and its child.
SERVES = """
import http.server, subprocess
value = dict(zip(sys.argv, sys.argv[1:]))
with open({pids!r}, "w") as out:
    out.write(f"{{os.getpid()}} {{subprocess.Popen(['sleep', '120']).pid}}")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers["Authorization"] == "Bearer " + {key}
        self.send_response(200 if known and self.path == "/ready" else 401)
        self.end_headers()

    def log_message(self, *args):
        pass

print("listening", flush=True)
http.server.HTTPServer((value["--host"], int(value["--port"])), Handler).serve_forever()
"""


_OWN_KEY = "next(a.split('=', 1)[1] for a in sys.argv if a.startswith('--api-key='))"


def config(python: str, *, boot_timeout_s: float = 200.0, **rest: Any) -> EngineConfig:
    return EngineConfig(kind="sglang", sglang=SglangConfig(python=python, boot_timeout_s=boot_timeout_s), **rest)


def test_a_child_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "print('cannot find the flux'); sys.stderr.write('capacitor\\n'); sys.exit(3)")
    server = SglangServer(tmp_path, config(python))
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"(?s)status 3.*(flux|capacitor).*(flux|capacitor)"):
        asyncio.run(server.start())
    assert time.monotonic() - began < 100


def test_an_interpreter_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    server = SglangServer(tmp_path, config(str(tmp_path / "no-such-python")))
    with pytest.raises(EngineError, match="no-such-python"):
        asyncio.run(server.start())


def test_a_child_that_never_answers_is_ended_and_the_field_to_raise_is_named(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    python = interpreter(
        tmp_path, f"open({str(pids)!r}, 'w').write(str(os.getpid())); print('loading', flush=True); time.sleep(120)"
    )
    server = SglangServer(tmp_path, config(python, boot_timeout_s=2.5))
    with pytest.raises(EngineError, match=r"(?s)engine\.sglang\.boot_timeout_s 2\.5.*loading"):
        asyncio.run(server.start())
    assert eventually(lambda: not runs(int(pids.read_text())))


def test_a_server_that_does_not_know_the_key_is_not_taken_for_ours(tmp_path: Path) -> None:
    body = SERVES.format(pids=str(tmp_path / "pids"), key="'of another'")
    server = SglangServer(tmp_path, config(interpreter(tmp_path, body), boot_timeout_s=2.5))
    with pytest.raises(EngineError, match=r"(?s)boot_timeout_s.*listening"):
        asyncio.run(server.start())


def test_a_server_that_answers_is_started_watched_and_stopped_without_a_trace(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    server = SglangServer(tmp_path, config(interpreter(tmp_path, SERVES.format(pids=str(pids), key=_OWN_KEY))))

    async def story() -> None:
        with pytest.raises(EngineError, match="not been started"):
            server.check()
        await server.start()
        server.check()
        assert server.pid is not None and "listening" in server.tail()
        everyone = [server.pid, *map(int, pids.read_text().split())]
        assert all(map(runs, everyone))
        await server.stop()
        assert not any(map(runs, everyone[:2])) and eventually(lambda: not any(map(runs, everyone)))
        assert server.pid is None
        await server.stop()

    asyncio.run(story())


def test_a_child_that_is_killed_is_noticed_with_its_last_words(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    server = SglangServer(tmp_path, config(interpreter(tmp_path, SERVES.format(pids=str(pids), key=_OWN_KEY))))

    def ended() -> bool:
        try:
            server.check()
        except EngineError as error:
            assert "status 137" in str(error) and "listening" in str(error)
            return True
        return False

    async def story() -> None:
        await server.start()
        child, grandchild = map(int, pids.read_text().split())
        os.kill(child, signal.SIGKILL)
        assert eventually(ended) and eventually(lambda: not runs(grandchild))
        await server.stop()

    asyncio.run(story())


# -- the port -----------------------------------------------------------------------------------------------------


def bind(port: int, *, reuse: bool, only: int | None = None) -> socket.socket:
    """``only`` leaves the kernel one port to choose from."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if reuse:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if only is not None:
            ip_local_port_range = 51  # Linux 6.3
            made.setsockopt(socket.IPPROTO_IP, ip_local_port_range, struct.pack("I", only << 16 | only))
        made.bind((HOST, port))
    except OSError:
        made.close()
        raise
    return made


def test_the_port_is_ours_from_the_beginning_and_free_to_the_server_that_binds_it(tmp_path: Path) -> None:
    server = SglangServer(tmp_path, config("python"))
    port = server._port.getsockname()[1]
    try:
        with pytest.raises(OSError):
            bind(port, reuse=False)
        for reuse in (False, True):
            for _ in range(200):
                other = bind(0, reuse=reuse)
                assert other.getsockname()[1] != port
                other.close()
        with bind(port, reuse=True) as listening:
            listening.listen()
            with socket.create_connection((HOST, port), timeout=60) as client, listening.accept()[0] as accepted:
                client.sendall(b"hello")
                assert accepted.recv(5) == b"hello"
    finally:
        asyncio.run(server.stop())
    assert server._port.fileno() == -1, "given back"


@pytest.mark.parametrize("reuse", [False, True])
def test_the_kernel_gives_the_port_to_nobody_even_where_it_has_no_other(tmp_path: Path, reuse: bool) -> None:
    server = SglangServer(tmp_path, config("python"))
    port = server._port.getsockname()[1]
    try:
        try:
            bind(0, reuse=reuse, only=port).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                pytest.skip(f"this kernel cannot narrow the choice of ports: {error}")
        else:
            pytest.fail("the port that is held was given away")
    finally:
        asyncio.run(server.stop())


# -- the command --------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "kind": "sglang",
    "dtype": "float16",
    "context_length": 1000,
    "max_running_requests": 7,
    "kv_blocks": 10,
    "page_size": 128,
    "max_batch_tokens": 300,
    "tp_size": 2,
    "seed": 5,
    "threads": 3,
}
SHARED = {
    "--model-path": "/models/tiny",
    "--host": "127.0.0.1",
    "--port": "4567",
    "--api-key=key": None,
    "--log-level": "warning",
    "--weight-version": "0",
    "--dtype": "float16",
    "--context-length": "1000",
    "--tp-size": "2",
    "--max-running-requests": "7",
    "--max-total-tokens": "1280",
    "--chunked-prefill-size": "300",
    "--random-seed": "5",
    "--incremental-streaming-output": None,
    "--skip-server-warmup": None,
    "--constrained-json-disable-any-whitespace": None,
}


def flags(arguments: list[str]) -> dict[str, str | None]:
    assert arguments[:2] == ["-m", "sglang.launch_server"]
    found: dict[str, str | None] = {}
    for at, argument in enumerate(arguments[2:], 2):
        if argument.startswith("--"):
            assert argument not in found, f"{argument} is given twice"
            following = arguments[at + 1] if at + 1 < len(arguments) else "--"
            found[argument] = None if following.startswith("--") else following
    return found


def test_each_setting_is_a_flag_on_gpus() -> None:
    settings = EngineConfig(**SETTINGS, sglang=SglangConfig(memory_fraction=0.4, extra_args=("--stream-interval", "2")))
    arguments = launch_arguments(Path("/models/tiny"), settings, 4567, "key")
    assert flags(arguments) == {**SHARED, "--mem-fraction-static": "0.4", "--stream-interval": "2"}
    assert arguments[-2:] == ["--stream-interval", "2"], "the operator has the last word"


def test_each_setting_is_a_flag_without_gpus() -> None:
    settings = EngineConfig(**SETTINGS, device="cpu")
    assert flags(launch_arguments(Path("/models/tiny"), settings, 4567, "key")) == {
        **SHARED,
        "--device": "cpu",
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--disable-overlap-schedule": None,
        "--disable-cuda-graph": None,
        "--sleep-on-idle": None,
    }


def test_without_a_seed_sglang_picks_its_own() -> None:
    settings = EngineConfig(**{**SETTINGS, "seed": None}, sglang=SglangConfig())
    assert "--random-seed" not in launch_arguments(Path("/m"), settings, 1, "k")


def test_paths_of_our_interpreter_do_not_reach_the_child_and_what_the_operator_adds_does() -> None:
    inherited = {"PYTHONPATH": "/ours", "PYTHONHOME": "/ours", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"}
    settings = EngineConfig(**SETTINGS, sglang=SglangConfig(env={"PYTHONPATH": "/theirs", "A": "b"}))
    assert launch_environment(settings, inherited) == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "3",
        "OMP_NUM_THREADS": "3",
        "PYTHONPATH": "/theirs",
        "A": "b",
    }
    assert "PYTHONPATH" not in launch_environment(EngineConfig(**SETTINGS), inherited)


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_gpus_sglang_is_told_so_and_each_rank_has_a_core(ranks: int) -> None:
    settings = EngineConfig(**{**SETTINGS, "tp_size": ranks}, device="cpu")
    found = launch_environment(settings, {})
    assert found["SGLANG_USE_CPU_ENGINE"] == "1"
    cores = found.get("SGLANG_CPU_OMP_THREADS_BIND", "").split("|")
    assert len(cores) == ranks and all(int(core) in os.sched_getaffinity(0) for core in cores if core)
    assert ("SGLANG_CPU_OMP_THREADS_BIND" in found) == (ranks > 1)


@pytest.mark.parametrize("key", ["plain", "-begins-with-a-dash", "--two"])
def test_any_key_reaches_the_server_as_its_key(key: str) -> None:
    """One in 64 keys begins with a dash, and was taken for a flag: the server did not start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key")
    read, _ = parser.parse_known_args(launch_arguments(Path("model"), EngineConfig(kind="sglang"), 1, key)[2:])
    assert read.api_key == key
