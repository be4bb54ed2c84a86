"""What an operator's filter said of a turn that it refused: it may quote the conversation, so it is sealed like that.

It goes with the turn's texts. Of a turn in which something was redacted it is not kept at all.
"""

from __future__ import annotations

from clawrl.ledger.database import Database
from clawrl.messages import TurnId

LONGEST = 2_000
"""Characters; the rest is cut off."""


def note(db: Database, turn_id: TurnId, owner: str, words: str) -> None:
    said = words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."
    db.execute("INSERT INTO refusals (turn_id, words) VALUES (?, ?)", turn_id, db.codec.pack_json(owner, said))


def load(db: Database, turn_id: TurnId) -> str:
    """Empty where nothing was said."""
    row = db.one("SELECT r.words, t.owner FROM refusals r JOIN turns t USING (turn_id) WHERE turn_id = ?", turn_id)
    return "" if row is None else str(db.codec.unpack_json(row["owner"], row["words"]))
