"""Which few tokens of a position distillation looks at, and what a teacher that lists only its best says of them."""

from typing import Literal

import torch
from torch import Tensor


def is_listed(ids_BTS: Tensor, table_ids_BTK: Tensor) -> Tensor:
    """``listed_BTS``: whether each id is among the same row's table. Leading dimensions broadcast."""
    return (ids_BTS[..., :, None] == table_ids_BTK[..., None, :]).any(-1)


def lookup(ids_BTS: Tensor, table_ids_BTK: Tensor, table_logp_BTK: Tensor) -> tuple[Tensor, Tensor]:
    """The table's log-prob of each id -> ``(logp_BTS, found_BTS)``; K >= 1.

    An id that is not listed gets the smallest log-prob of its row and ``found`` false: the table lists the most likely
    tokens, so that is an upper bound.
    """
    same_BTSK = ids_BTS[..., :, None] == table_ids_BTK[..., None, :]
    listed_BTS = torch.where(same_BTSK, table_logp_BTK[..., None, :], -torch.inf).amax(-1)
    bound_BT1 = table_logp_BTK.amin(-1, keepdim=True)
    found_BTS = same_BTSK.any(-1)
    return torch.where(found_BTS, listed_BTS, bound_BT1), found_BTS


def build_support(
    kind: Literal["teacher", "student", "overlap"], student_ids_BTk: Tensor, teacher_ids_BTk: Tensor
) -> tuple[Tensor, Tensor]:
    """``(ids_BTS, support_BTS)``, where ``support`` is true for the ids that count.

    ``teacher`` and ``student`` take one side's top-k whole; ``overlap`` takes the student's ids and supports those that
    are also the teacher's, which may be none.
    """
    match kind:
        case "teacher":
            return teacher_ids_BTk, torch.ones_like(teacher_ids_BTk, dtype=torch.bool)
        case "student":
            return student_ids_BTk, torch.ones_like(student_ids_BTk, dtype=torch.bool)
        case "overlap":
            return student_ids_BTk, is_listed(student_ids_BTk, teacher_ids_BTk)
        case _:
            raise ValueError(f"kind {kind!r} is no support: use teacher, student or overlap")
