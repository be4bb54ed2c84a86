"""`serve run` without a terminal: what stops it has to be what Ctrl-C sends, and it has to hear it."""

from __future__ import annotations

import configparser
import inspect
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ray.serve._private.client import ServeControllerClient

from clawrl.actors import supervisor
from tests.docs_commands import ROOT, blocks

UNIT = ROOT / "deployments" / "systemd" / "clawrl.service"
PAGE = (ROOT / "docs" / "operations-service.md").read_text()
SERVER = """#!{python}
import pathlib, signal, sys
def stop(*_):
    print("stopped by Ctrl-C", flush=True)
    sys.exit(0)
if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, stop)
pathlib.Path("ready").touch()
print("serves", *sys.argv[1:], flush=True)
signal.pause()
"""
WAITS = "#!/bin/sh\nuntil [ -e ready ]; do sleep 0.05; done\n"


def unit() -> configparser.ConfigParser:
    # A key may stand there twice, which is all that systemd's files have that these have not.
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(UNIT.read_text())
    return read


def test_systemd_stops_serve_run_alone_by_ctrl_c_and_waits_long_enough() -> None:
    service = unit()["Service"]
    assert service["KillSignal"] == "SIGINT"
    assert service["KillMode"] == "mixed", "all processes at once would take Ray away under `serve run`"
    assert float(service["TimeoutStopSec"]) > 2 * supervisor._STOP_TIMEOUT_S
    program, *rest = service["ExecStart"].split()
    assert program.endswith("/.venv/bin/serve")
    assert rest[0] == "run" and (ROOT / rest[1]).is_file()


def test_ray_serve_gives_a_stop_as_long_as_the_page_says() -> None:
    bound = inspect.signature(ServeControllerClient.shutdown).parameters["timeout_s"].default
    assert f"Ray Serve gives all of its parts {bound:g} seconds" in PAGE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    # It looks whether the program is there.
    here = UNIT.read_text().replace("/srv/clawrl/.venv/bin/serve", "/bin/true").replace("/srv/clawrl", str(tmp_path))
    (tmp_path / UNIT.name).write_text(here)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)]
    said = subprocess.run(verify, capture_output=True, text=True, check=False)
    ours = [line for line in said.stderr.splitlines() if UNIT.name in line]
    assert said.returncode == 0 and not ours, said.stderr


def run(script: str, folder: Path) -> None:
    for name, text in (("serve", SERVER.format(python=sys.executable)), ("clawrl", WAITS)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    # If it does not stop, neither does the script.
    process = subprocess.Popen(["bash", "-c", script], cwd=folder, env={**os.environ, "PATH": path}, process_group=0)
    try:
        process.wait(30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_script_starts_it_in_the_background_and_stops_it_as_the_page_says_it(tmp_path: Path) -> None:
    (script,) = (block for block in blocks(PAGE) if "kill -INT" in block)
    run(script, tmp_path)
    assert (tmp_path / "serve.log").read_text().splitlines() == [
        "serves run deployments/laptop.yaml",
        "stopped by Ctrl-C",
    ]


BACKGROUND = """
import subprocess, sys
from clawrl.evaluation.demo_server import hear_ctrl_c
if "heard" in sys.argv:
    hear_ctrl_c()
subprocess.run([sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"])
"""


@pytest.mark.parametrize(("how", "ignores"), [("as it is", "True"), ("heard", "False")])
def test_a_child_of_a_background_job_hears_ctrl_c_where_its_parent_minds(how: str, ignores: str) -> None:
    script = f'"{sys.executable}" -c "$0" "$1" & wait'
    said = subprocess.run(["bash", "-c", script, BACKGROUND, how], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == ignores
