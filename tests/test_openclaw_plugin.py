"""The OpenClaw plugin: its own tests under Node, and what its manifests and its example must agree on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

PLUGIN = Path(__file__).resolve().parent.parent / "integrations" / "openclaw"


def _read(name: str) -> Any:
    return json.loads((PLUGIN / name).read_text())


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_plugin_passes_its_own_tests() -> None:
    run = subprocess.run(
        ["node", "--test", "--test-reporter=tap"], cwd=PLUGIN, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    passed = re.search(r"^# pass (\d+)$", run.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) > 50, "the tests were not found"


def test_the_example_uses_the_plugin_and_its_provider() -> None:
    example, manifest = _read("openclaw.json"), _read("openclaw.plugin.json")
    (provider,) = manifest["providers"]
    assert list(example["models"]["providers"]) == [provider]
    assert list(example["plugins"]["entries"]) == [manifest["id"]]
    (model,) = example["models"]["providers"][provider]["models"]
    assert example["agents"]["defaults"]["model"]["primary"] == f"{provider}/{model['id']}"


def test_the_example_asks_for_what_the_server_and_the_plugin_need() -> None:
    example = _read("openclaw.json")
    (model,) = example["models"]["providers"]["clawrl"]["models"]
    assert model["compat"] == {"sendSessionAffinityHeaders": True, "supportsUsageInStreaming": True}
    assert example["plugins"]["entries"]["clawrl"]["hooks"] == {"allowConversationAccess": True}


def test_every_setting_that_the_manifest_allows_is_explained() -> None:
    readme = (PLUGIN / "README.md").read_text()
    settings = _read("openclaw.plugin.json")["configSchema"]["properties"]
    assert [name for name in settings if f"| `{name}` |" not in readme] == []


def test_the_package_names_its_entry_and_needs_no_build() -> None:
    package = _read("package.json")
    assert package["type"] == "module"
    assert all((PLUGIN / entry).is_file() for entry in [*package["openclaw"]["extensions"], *package["files"][:2]])
    assert not {"dependencies", "devDependencies"} & set(package)
