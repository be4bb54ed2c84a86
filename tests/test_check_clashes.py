"""`clawrl check` with several files: what they cannot share, what is taken now, and in which Ray cluster each runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from clawrl import cli
from clawrl.check import check_file
from clawrl.check.clashes import Claims, Listener, StateClaim, clashes
from clawrl.check.clusters import FIRST_CLUSTER, SECOND_CLUSTER, advice
from clawrl.check.machine import Seen, look
from clawrl.ledger.folder import hold
from tests.fake_server import FakeState, fake_server
from tests.live import KEY, REPOSITORY, free_port, tiny_deployment

A, B = Path("a.yaml"), Path("b.yaml")
ROOT = Path("/root")


@pytest.fixture(autouse=True)
def _a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLAWRL_TEST_KEY", KEY)
    monkeypatch.setenv("RAY_ADDRESS", "local")


def listening(file: Path, host: str, port: int, path: str = "http_options.port") -> Claims:
    return Claims(file=file, listeners=(Listener(path=path, host=host, port=port),))


def keeping(file: Path, name: str, folder: str, root: Path = ROOT) -> Claims:
    return Claims(file=file, states=(StateClaim(path="args", name=name, folder=Path(folder), root=root),))


def write(
    folder: Path, name: str, port: int, *, file: str | None = None, top: dict[str, Any] | None = None, **args: Any
) -> Path:
    """A deployment file of this name and port; ``top`` is merged into its top level."""
    document = tiny_deployment(folder, port, name=name, **args) | (top or {})
    target = folder / f"{file or name}.yaml"
    target.write_text(yaml.safe_dump(document))
    return target


def compared(*files: Path) -> list[str]:
    return clashes([claims for file in files if (claims := check_file(file).claims) is not None])


def run(*files: Path) -> Result:
    return CliRunner().invoke(cli.app, ["check", *map(str, files)])


# What files cannot share.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("0.0.0.0", "10.0.0.5"),
        ("::", "127.0.0.1"),
        ("", "10.0.0.5"),
        ("localhost", "127.0.0.1"),
        ("LocalHost", "localhost"),
    ],
)
def test_one_port_on_hosts_that_meet_is_one_clash_that_names_both_files(one: str, other: str) -> None:
    for pair in ((one, other), (other, one)):
        (line,) = clashes([listening(A, pair[0], 8000), listening(B, pair[1], 8000)])
        assert line.startswith("a.yaml: http_options.port: ") and "b.yaml" in line
        assert f"{pair[0]}:8000" in line and f"{pair[1]}:8000" in line and "change the port" in line


@pytest.mark.parametrize(
    ("one", "other"), [(("127.0.0.1", 8000), ("127.0.0.1", 8001)), (("127.0.0.1", 8000), ("10.0.0.5", 8000))]
)
def test_other_ports_and_hosts_that_do_not_meet_are_no_clash(one: tuple[str, int], other: tuple[str, int]) -> None:
    assert clashes([listening(A, *one), listening(B, *other)]) == []


def test_a_grpc_port_clashes_with_another_one_and_with_an_http_port() -> None:
    grpc = listening(A, "::", 9000, "grpc_options.port")
    for other, path in (("::", "grpc_options.port"), ("127.0.0.1", "http_options.port")):
        (line,) = clashes([grpc, listening(B, other, 9000, path)])
        assert "a.yaml: grpc_options.port" in line and f"{path} of b.yaml" in line


def test_a_name_is_taken_once_within_one_root_and_freely_in_another() -> None:
    (line,) = clashes([keeping(A, "x", "/root/one"), keeping(B, "x", "/root/two")])
    assert "a.yaml: args.name: 'x'" in line and "b.yaml" in line and "/root" in line and "rename" in line
    assert clashes([keeping(A, "x", "/root/one"), keeping(B, "x", "/other/two", Path("/other"))]) == []
    assert clashes([keeping(A, "x", "/root/one"), keeping(B, "y", "/root/two")]) == []


@pytest.mark.parametrize(
    ("one", "other", "relation"),
    [
        ("/root/x", "/root/x", "is also"),
        ("/root/x/deep/er", "/root/x", "lies inside /root/x"),
        ("/root/x", "/root/x/deep", "contains /root/x/deep"),
    ],
)
def test_a_state_folder_is_nobody_elses_not_even_in_part(one: str, other: str, relation: str) -> None:
    (line,) = clashes([keeping(A, "p", one), keeping(B, "q", other)])
    assert line.startswith(f"a.yaml: args.state_dir: {one} ") and relation in line and "b.yaml" in line


def test_a_folder_whose_name_only_begins_like_another_one_is_no_clash() -> None:
    assert clashes([keeping(A, "p", "/root/x"), keeping(B, "q", "/root/x2")]) == []


def test_every_pair_of_three_files_is_compared() -> None:
    files = [listening(Path(f"{name}.yaml"), "0.0.0.0", 8000) for name in "abc"]
    assert len(clashes(files)) == 3


# What a file claims.


def test_deployments_that_share_a_model_and_its_cache_do_not_clash(tmp_path: Path) -> None:
    assert compared(write(tmp_path, "one", 8000), write(tmp_path, "two", 8001)) == []


def test_copies_of_a_file_clash_by_address_name_and_folder(tmp_path: Path) -> None:
    lines = compared(write(tmp_path, "one", 8000), write(tmp_path, "one", 8000, file="copy"))
    assert [line.split(": ")[1] for line in lines] == [
        "http_options.port",
        "applications[0].args.name",
        "applications[0].args.state_dir",
    ]


def test_a_state_folder_is_compared_by_where_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home" / "one")
    (line,) = compared(
        write(tmp_path, "one", 8000), write(tmp_path, "two", 8001, state_dir=str(tmp_path / "link" / "two"))
    )
    assert f"contains {tmp_path / 'home' / 'one' / 'two'}" in line


def test_the_root_is_the_home_below_it_and_the_parent_folder_elsewhere(tmp_path: Path) -> None:
    below = write(tmp_path, "one", 8000, file="below", state_dir="runs/one")
    plain = write(tmp_path, "one", 8001, file="plain")
    assert len(compared(below, plain)) == 1
    elsewhere = write(tmp_path, "one", 8002, file="elsewhere", state_dir=str(tmp_path / "disk" / "one"))
    assert compared(plain, elsewhere) == []


@pytest.mark.parametrize(
    ("grpc", "listens"),
    [
        ({"port": 9100}, [9100]),
        ({"grpc_servicer_functions": ["os.path:join"]}, [9000]),
        ({}, []),
    ],
)
def test_a_grpc_port_counts_where_one_is_set(tmp_path: Path, grpc: dict[str, Any], listens: list[int]) -> None:
    claims = check_file(write(tmp_path, "one", 8000, top={"grpc_options": grpc})).claims
    assert claims is not None and [listener.port for listener in claims.listeners] == [8000, *listens]


def test_a_file_without_a_port_claims_the_one_that_serve_would_take(tmp_path: Path) -> None:
    other = write(tmp_path, "two", 8000)
    assert len(compared(write(tmp_path, "one", 1, top={"http_options": {"host": "127.0.0.1"}}), other)) == 1
    assert len(compared(write(tmp_path, "one", 1, top={"http_options": {}}), other)) == 1
    assert compared(write(tmp_path, "one", 8000, top={"proxy_location": "Disabled"}), other) == []


def test_two_applications_of_one_file_are_compared_too(tmp_path: Path) -> None:
    file = write(tmp_path, "one", 8000)
    document = yaml.safe_load(file.read_text())
    second = {**document["applications"][0], "name": "second", "route_prefix": "/second"}
    file.write_text(yaml.safe_dump(document | {"applications": [document["applications"][0], second]}))
    name, folder = compared(file)
    assert "applications[0].args.name" in name and "applications[1].args.name" in name and "is also" in folder


# What the command says.


def test_files_that_clash_are_an_error_that_names_both(tmp_path: Path) -> None:
    port = free_port()
    one, two = write(tmp_path, "one", port), write(tmp_path, "two", port)
    result = run(one, two)
    assert result.exit_code == 1
    assert f"{one}: http_options.port: 127.0.0.1:{port} is also http_options.port of {two}" in result.output


def test_files_that_do_not_clash_are_fine_and_each_shows_its_needs(tmp_path: Path) -> None:
    one, two = write(tmp_path, "one", free_port()), write(tmp_path, "two", free_port())
    result = run(one, two)
    assert result.exit_code == 0, result.output
    assert result.output.count("Supervisor") == 2 and "RAY_ADDRESS" not in result.output


def test_a_broken_file_is_told_and_the_others_are_still_compared(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("- 1")
    port = free_port()
    result = run(write(tmp_path, "one", port), broken, write(tmp_path, "two", port))
    assert result.exit_code == 1
    assert f"{broken}: the top level is not a mapping" in result.output and "is also http_options.port" in result.output


def test_the_cluster_is_spoken_of_only_where_two_files_would_share_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = write(tmp_path, "one", free_port()), write(tmp_path, "two", free_port())
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    assert "RAY_ADDRESS" not in run(one).output
    result = run(one, two)
    assert result.exit_code == 0 and SECOND_CLUSTER in result.output


# What is taken now.


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that some program listens on without ever answering."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


def seen(file: Path) -> Seen:
    claims = check_file(file).claims
    assert claims is not None
    return look(claims, os.environ)


def serving(monkeypatch: pytest.MonkeyPatch, name: str, pid: int) -> None:
    """What the fake server says of itself."""
    monkeypatch.setattr(FakeState, "status", lambda self: {"name": name, "coordinator": {"pid": pid}})


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def test_a_free_port_and_an_unused_folder_are_not_mentioned(tmp_path: Path) -> None:
    assert seen(write(tmp_path, "one", free_port())) == Seen()
    assert not (tmp_path / "home").exists()


def test_a_port_that_a_program_holds_is_a_warning_and_not_an_error(
    tmp_path: Path, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.check.machine._ANSWER_S", 0.2)
    result = run(write(tmp_path, "one", listener))
    assert result.exit_code == 0, result.output
    assert f"http_options.port: port {listener} of 127.0.0.1 is taken by another program; stop that" in result.output


def test_a_port_is_taken_on_every_host_for_a_file_that_opens_them_all(
    tmp_path: Path, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.check.machine._ANSWER_S", 0.2)
    (warning,) = seen(write(tmp_path, "one", 1, top={"http_options": {"host": "0.0.0.0", "port": listener}})).warnings
    assert f"port {listener} of 0.0.0.0 is taken" in warning


def test_a_port_that_another_deployment_serves_is_a_warning_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(monkeypatch, "other", os.getpid())
    with fake_server(FakeState(api_key=KEY)) as url:
        found = seen(write(tmp_path, "one", port_of(url)))
    assert found.notes == () and len(found.warnings) == 1 and "is taken by deployment 'other'" in found.warnings[0]


def test_a_deployment_that_runs_where_its_file_says_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(monkeypatch, "one", os.getpid())
    held = hold(tmp_path / "home" / "one", "one")
    with fake_server(FakeState(api_key=KEY)) as url:
        found = seen(write(tmp_path, "one", port_of(url)))
    held.release()
    assert found.warnings == () and len(found.notes) == 1
    assert f"it is running: deployment 'one' (process {os.getpid()}" in found.notes[0]


def test_a_namesake_with_another_folder_is_not_taken_for_the_deployment_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(monkeypatch, "one", os.getpid() + 1)
    held = hold(tmp_path / "home" / "one", "one")
    with fake_server(FakeState(api_key=KEY)) as url:
        found = seen(write(tmp_path, "one", port_of(url)))
    held.release()
    assert found.notes == () and len(found.warnings) == 2


def test_a_server_that_refuses_the_files_key_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(monkeypatch, "one", os.getpid())
    with fake_server(FakeState(api_key="another key")) as url:
        (warning,) = seen(write(tmp_path, "one", port_of(url))).warnings
    assert "is taken by another program" in warning


def test_a_state_folder_that_a_living_deployment_holds_is_a_warning_with_its_process(tmp_path: Path) -> None:
    held = hold(tmp_path / "home" / "one", "elder")
    file = write(tmp_path, "one", free_port())
    (warning,) = seen(file).warnings
    assert f"args.state_dir: {tmp_path / 'home' / 'one'} is in use by deployment 'elder'" in warning
    assert f"process {os.getpid()}" in warning and run(file).exit_code == 0
    held.release()
    assert seen(file) == Seen()


# Which Ray cluster.


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, "set RAY_ADDRESS=local for both"),
        ("", "set RAY_ADDRESS=local for both"),
        ("auto", "set RAY_ADDRESS=local for both"),
        ("127.0.0.1:6379", f"`{SECOND_CLUSTER}`, then RAY_ADDRESS=127.0.0.1:6380"),
        ("127.0.0.1:6380", f"`{FIRST_CLUSTER}`, then RAY_ADDRESS=127.0.0.1:6379"),
    ],
)
def test_the_advice_gives_each_deployment_a_cluster_of_its_own(address: str | None, said: str) -> None:
    line = advice(address)
    assert line is not None and said in line and "docs/operations-two-graphs.md" in line


def test_private_clusters_need_no_advice() -> None:
    assert advice("local") is None


@pytest.mark.parametrize("command", [FIRST_CLUSTER, SECOND_CLUSTER])
def test_the_commands_are_those_of_the_recipe(command: str) -> None:
    recipe = (REPOSITORY / "docs" / "operations-two-graphs.md").read_text().replace("\\\n    ", "")
    assert command in recipe


def test_the_two_clusters_of_the_recipe_share_no_port() -> None:
    words = SECOND_CLUSTER.split()
    ports = {flag: int(port) for flag, port in pairwise(words) if port.isdigit()}
    least, most = ports["--min-worker-port"], ports["--max-worker-port"]
    # What the first cluster has by default: its address, dashboard, dashboard agent, client server and workers.
    assert not {6379, 8265, 52365, 10001} & set(ports.values())
    assert least > 19999 and not any(least <= port <= most for flag, port in ports.items() if "worker" not in flag)
