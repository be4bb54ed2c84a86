"""The head node dies under traffic, a new one with its disk goes on where it was. Replicas share no disk with it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from clawrl.messages import TurnState
from tests.fake_cluster import serve_environment
from tests.live import GUARDS_FOR_RANDOM_WEIGHTS, REPOSITORY, free_port, tiny_deployment
from tests.traffic import Traffic
from tests.trained_once import nothing_is_trained_twice
from tests.two_nodes import TwoNodes, can_hide

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]


@pytest.fixture
def nodes(tiny_folder: Path) -> Iterator[TwoNodes]:
    """The resources of the file in deployments/cluster: what trains is on the head, what serves on the other node."""
    file = yaml.safe_load((REPOSITORY / "deployments" / "cluster" / "autoscaled.yaml").read_text())
    args = file["applications"][0]["args"]
    hidden = can_hide()
    deployment = tiny_deployment(
        tiny_folder,
        free_port(),
        policy__resources=args["policy"]["resources"],
        judge__resources=args["judge"]["resources"],
        trainer__resources=args["trainer"]["resources"],
        trainer__training__checkpoint_every=3,
        publish__snapshot_access="auto" if hidden else "network",
        guards=GUARDS_FOR_RANDOM_WEIGHTS,
    )
    with TwoNodes(deployment, env=serve_environment(), hidden=hidden) as live:
        yield live


def test_a_new_head_with_the_old_disk_goes_on_where_the_old_one_was(nodes: TwoNodes) -> None:
    live = nodes
    assert live.node_of_replicas() == {"serving"}
    with Traffic(live, users=3, pause_s=0.1) as before:
        live.wait_for(
            lambda s: s["version"] >= 4 and s["turns"]["by_state"].get("trained", 0) > 0, timeout_s=600, what="steps"
        )
        live.lose_the_head()
    with live.ledger() as ledger:
        known = {row.turn_id for row in ledger.turns(100_000)}
        last = ledger.current_version()
        applied = nothing_is_trained_twice(ledger)
    assert len(known) >= len(before.answers) > 0, "every answer that was heard to its end is on the disk"
    assert last is not None and last.version >= 4 and applied >= 16

    live.start()
    status = live.status()
    assert status["version"] >= last.version and status["floor"] >= last.version
    assert live.node_of_replicas() == {"serving"}
    assert live.copies() != [], "the snapshot came over the network: its node sees no disk of the head's"
    with Traffic(live, users=3, pause_s=0.1) as after:
        live.wait_for(lambda s: s["version"] >= last.version + 4, timeout_s=600, what="more versions")
    assert after.failures == []
    assert min(answer.version for answer in after.answers) >= last.version
    with live.ledger() as ledger:
        assert known <= {row.turn_id for row in ledger.turns(100_000)}
        assert nothing_is_trained_twice(ledger) > applied
        versions = sorted(ledger.versions(100_000), key=lambda version: version.published_at)
        assert all(older.version < newer.version for older, newer in pairwise(versions))
        forgotten = [row for row in ledger.turns(100_000) if row.state is TurnState.LEASED and row.turn_id in known]
    assert status["turns"]["adds_up"] and live.status()["unrecorded"] == 0
    assert len(forgotten) <= 4, "of the turns from before at most those of the batch under way are lent"
