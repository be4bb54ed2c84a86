"""Looking at processes that come and go meanwhile."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.family import command_line


def test_a_process_that_ended_after_it_was_found_has_an_empty_command_line() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline(), "until it speaks it may not have become that program"
    found = psutil.Process(child.pid)
    assert command_line(found)
    child.kill()
    try:
        while found.status() != psutil.STATUS_ZOMBIE:
            pass
        assert command_line(found) == [], "it is a zombie until its parent has asked after it"
    finally:
        child.communicate()
    assert command_line(found) == []
