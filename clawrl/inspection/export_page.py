"""A page of an export: read in the ledger's own thread, and made into rows wherever there is time for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clawrl.inspection.exported import export_row
from clawrl.ledger.codec import NOBODY
from clawrl.ledger.life import TurnText
from clawrl.ledger.looking import TurnFilter
from clawrl.ledger.store import Ledger
from clawrl.ledger.views import TurnRow
from clawrl.privacy.keys import KeyStore
from clawrl.privacy.sealed_rows import RowSeal


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPage:
    """``before`` asks for the next page, and is absent on the last. With a ``seal`` the rows come out sealed."""

    turns: Sequence[tuple[TurnRow, TurnText | None]]
    before: int | None
    seal: RowSeal | None

    def rows(self) -> list[dict[str, Any]]:
        rows = [export_row(*turn) for turn in self.turns]
        return rows if self.seal is None else [self.seal.seal(row) for row in rows]


def read_page(
    ledger: Ledger, wanted: TurnFilter, before: int | None, limit: int, seal_with: KeyStore | None
) -> ExportPage:
    page = ledger.find_turns(wanted, before, limit)
    # Of who was forgotten there is nothing to read, and nothing that wants a key.
    turns = [(row, None if row.owner == NOBODY else ledger.texts_if_any(row.turn_id)) for row in page.rows]
    owners = [row.owner for row, text in turns if text is not None]
    seal = None if seal_with is None else RowSeal.of(seal_with, owners)
    return ExportPage(turns=turns, before=page.before, seal=seal)
