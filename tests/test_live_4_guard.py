"""Answers go bad: learning freezes with a reason, the last good version serves again, and an operator can go on."""

from __future__ import annotations

from typing import Any

import httpx

from tests.live import AUTH, Live
from tests.traffic import Traffic, ask


def test_an_alarm_freezes_learning_rolls_back_every_replica_and_the_trainer(live: Live) -> None:
    with Traffic(live, users=4):
        # A version of which enough healthy answers were seen.
        before = live.wait_for(
            lambda s: (s["guards"]["good_version"] or 0) > 0 and s["version"] > s["guards"]["good_version"],
            timeout_s=120,
            what="a good version that is not the newest",
        )
    client = live.client()

    def is_paused_after_one_more(status: dict[str, Any]) -> bool:
        # Of several versions perhaps, while what the traffic left is learned.
        content = f"question {status['turns']['recorded']}"
        ask(client, [{"role": "user", "content": content}], stream=False, session=None, max_tokens=2)
        return bool(status["paused"])

    frozen = live.wait_for(is_paused_after_one_more, what="the alarm")
    assert frozen["guards"]["alarm"]["name"] == "mean_tokens" and "clawrl resume" in frozen["pause_reason"]
    rolled_back = live.wait_for(
        lambda s: (
            "rolled_back_to" in s["versions"][0]["stats"]
            and all(replica["version"] == s["version"] for replica in s["replicas"])
            and len(s["replicas"]) == 2
        ),
        timeout_s=120,
        what="both replicas on the good version",
    )
    again = rolled_back["versions"][0]["stats"]["rolled_back_to"]
    assert rolled_back["version"] > again >= before["guards"]["good_version"]
    live.wait_for(
        lambda s: s["versions"][0]["stats"].get("trainer_rewound"), timeout_s=120, what="the trainer gone back"
    )

    version = rolled_back["version"]
    assert httpx.post(f"{live.url}/clawrl/resume", headers=AUTH, timeout=20.0).status_code == 200
    with Traffic(live, users=4) as traffic:
        live.wait_for(lambda s: s["version"] > version, timeout_s=120, what="learning goes on from there")
    assert traffic.failures == [] and live.status()["turns"]["adds_up"]


def test_an_operator_rolls_back_under_load_and_learning_goes_on_from_there(live: Live) -> None:
    def look(path: str) -> Any:
        reply = httpx.get(f"{live.url}/clawrl/{path}", headers=AUTH, timeout=20.0)
        assert reply.status_code == 200, reply.text
        return reply.json()

    with Traffic(live, users=4) as traffic:
        kept = [row["version"] for row in look("versions") if row["kept"] and not row["current"]]
        assert 0 in kept and len(kept) > 1
        reply = httpx.post(f"{live.url}/clawrl/rollback", json={"version": 0}, headers=AUTH, timeout=20.0)
        assert reply.status_code == 200, reply.text
        again = reply.json()["version"]
        live.wait_for(
            lambda s: len(s["replicas"]) == 2 and all(replica["version"] >= again for replica in s["replicas"]),
            timeout_s=120,
            what="both replicas on the start",
        )
        live.wait_for(lambda s: s["version"] > again, timeout_s=120, what="learning goes on from there")
    assert traffic.failures == []
    (restored,) = [row for row in look("versions?limit=1000") if row["version"] == again]
    assert restored["rolled_back_to"] == 0 and restored["stats"]["by"] == "operator" and restored["step"] == 0
    newest = look("turns?limit=1&state=awaiting_next")[0]
    life = look(f"turns/{newest['turn_id']}")
    assert life["tokens"] and all(token["piece"] is not None for token in life["tokens"]), "a replica spells them"
    assert life["why"]["sentence"].startswith("It waits for what comes next")
    assert look("steps?limit=5") and look("sessions?limit=5")
    refused = httpx.post(f"{live.url}/clawrl/rollback", json={"version": 10**6}, headers=AUTH, timeout=20.0)
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "version_not_kept"
    assert live.status()["turns"]["adds_up"]
