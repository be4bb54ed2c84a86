"""Privacy in a running graph: what is on the disk while it serves and trains, and after somebody is forgotten."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from clawrl.ledger.config import LedgerConfig
from clawrl.messages import TurnId
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.keys import KeyGone, KeyStore
from clawrl.privacy.opening import open_ledger
from clawrl.privacy.vault import LedgerVault
from tests.live import AUTH, GUARDS_FOR_RANDOM_WEIGHTS, MODEL, Live, free_port, tiny_deployment
from tests.privacy_kit import SECRET, found_in

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
MAIL = "ann.archer@example.com"


@pytest.fixture
def graph(tiny_folder: Path) -> Iterator[Live]:
    file = tiny_deployment(
        tiny_folder,
        free_port(),
        trainer__method={"name": "combine", "baseline": "none"},
        judge__hints={"source": "quoting", "reuse": "session"},
        guards=GUARDS_FOR_RANDOM_WEIGHTS,
        serving__users=[{"name": "ann", "key": "the key of ann"}],
        privacy={"redaction": {"builtin": ["email"]}},
    )
    with Live(file) as live:
        yield live


def talk(live: Live, key: str, session: str, turns: int, text: str, **headers: str) -> list[str]:
    """Returns the ids of the turns."""
    messages, ids = [{"role": "user", "content": f"{text} 0"}], []
    with httpx.Client(base_url=live.url, timeout=120.0, trust_env=False) as client:
        for number in range(turns):
            answer = client.post(
                "/v1/chat/completions",
                headers={"Authorization": f"Bearer {key}", "X-Session-Id": session, **headers},
                json={"model": MODEL, "messages": messages},
            )
            assert answer.status_code == 200, answer.text
            ids.append(answer.headers["x-clawrl-turn-id"])
            said = answer.json()["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{text} {number + 1}"}]
    return ids


def test_text_and_ids_are_nowhere_on_disk_and_a_forgotten_user_is_gone_for_good(graph: Live) -> None:
    live, key = graph, AUTH["Authorization"].removeprefix("Bearer ")
    state = live.home / "tiny"
    mine = talk(live, "the key of ann", "s", 7, SECRET)
    talk(live, key, "s", 3, "the weather is fine")
    redacted = talk(live, key, "mail", 2, f"write to {MAIL}")
    talk(live, key, "out", 1, "do not learn this", **{"X-Clawrl-Train": "no"})
    live.wait_for(lambda status: status["turns"]["by_state"].get("trained", 0) >= 4, timeout_s=300, what="a checkpoint")
    with live.ledger() as ledger:
        turn = ledger.turn(TurnId(mine[0]))
        assert turn is not None and SECRET in turn.arrival.messages[0].content
        ids = turn.prompt_ids.tolist()
        dropped = ledger.counts().dropped
        assert dropped["redacted"] == len(redacted) and dropped["not_permitted"] == 1
    # Everything: the state folder with log, journals and checkpoints, and what Ray and Serve wrote beside it.
    for text in (SECRET, MAIL, "the weather is fine"):
        assert found_in(live.folder, text, ids) == []
    backup = live.folder / "backup"
    shutil.copytree(state, backup / "tiny")

    with httpx.Client(base_url=live.url, timeout=120.0, trust_env=False) as client:
        refused = client.post(
            "/clawrl/forget", headers={"Authorization": "Bearer the key of ann"}, json={"user": "ann"}
        )
        assert refused.status_code == 403
        report = client.post("/clawrl/forget", headers=AUTH, json={"user": "ann"}).json()
    assert report["turns"] == len(mine) and report["keys_deleted"] == 1 and report["log_emptied"]
    assert report["steps"] != [] and report["versions"] != [], "the weights remember, and it is said which"
    status = live.status()
    assert status["turns"]["adds_up"]
    keys = KeyStore(live.home / "tiny.keys")
    asked = "SELECT t.owner, p.response_text FROM payloads p JOIN turns t USING (turn_id) WHERE turn_id = ?"
    with closing(sqlite3.connect(backup / "tiny" / "ledger.sqlite")) as copied:
        owner, sealed = copied.execute(asked, (mine[0],)).fetchone()
    with pytest.raises(KeyGone):
        LedgerVault(keys).unseal(owner, sealed)
    with open_ledger(backup / "tiny", LedgerConfig(), PrivacyConfig(), keys=keys) as old:
        assert [old.texts_if_any(TurnId(turn_id)) for turn_id in mine] == [None] * len(mine) and old.counts().adds_up
    # Who comes back is served and learned from again, and training goes on.
    again = talk(live, "the key of ann", "t", 7, "good morning")
    live.wait_for(lambda s: s["version"] > status["version"], timeout_s=300, what="another step")
    with live.ledger() as ledger:
        assert ledger.turn(TurnId(again[0])) is not None and ledger.counts().adds_up
    assert found_in(live.folder, SECRET) == found_in(live.folder, MAIL) == []
