"""Answers go bad: learning freezes with a reason, the last good version serves again, and an operator can go on."""

from __future__ import annotations

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
    for number in range(60):
        ask(client, [{"role": "user", "content": f"question {number}"}], stream=False, session=None, max_tokens=2)
        if live.status()["paused"]:
            break
    frozen = live.wait_for(lambda s: s["paused"], timeout_s=30, what="the alarm")
    assert frozen["guards"]["alarm"]["name"] == "mean_tokens" and "clawrl resume" in frozen["pause_reason"]
    rolled_back = live.wait_for(
        lambda s: (
            "rolled_back_to" in s["versions"][0]["stats"]
            and all(replica["version"] == s["version"] for replica in s["replicas"])
            and len(s["replicas"]) == 2
        ),
        timeout_s=60,
        what="both replicas on the good version",
    )
    again = rolled_back["versions"][0]["stats"]["rolled_back_to"]
    assert rolled_back["version"] > again >= before["guards"]["good_version"]
    live.wait_for(
        lambda s: s["versions"][0]["stats"].get("trainer_rewound"), timeout_s=60, what="the trainer gone back"
    )

    version = rolled_back["version"]
    assert httpx.post(f"{live.url}/clawrl/resume", headers=AUTH, timeout=20.0).status_code == 200
    with Traffic(live, users=4) as traffic:
        live.wait_for(lambda s: s["version"] > version, timeout_s=120, what="learning goes on from there")
    assert traffic.failures == [] and live.status()["turns"]["adds_up"]
