"""Which of several hints to learn from: the one whose teacher stays closest to what the policy would say anyway.

A hint is an index on dimension ``H``, shortest hint first. A teacher that shares no likely token with the policy asks
for something out of reach; the number of shared top-k tokens measures that.
"""

from typing import Literal

import torch
from torch import Tensor

from clawrl.loss.support import is_listed

Rule = Literal["sequence_optimal", "token_optimal", "shortest"]


def overlap_count(student_ids_BTk: Tensor, teacher_ids_BTHk: Tensor) -> Tensor:
    """How many of the student's top-k are also in the teacher's under each hint -> int64 ``count_BTH``."""
    return is_listed(student_ids_BTk[:, :, None, :], teacher_ids_BTHk).sum(-1)


def choose_hint(count_BTH: Tensor, mask_BT: Tensor, hint_mask_BH: Tensor, rule: Rule) -> Tensor:
    """int64 ``choice_BT``: the hint of each token, among those with ``hint_mask`` true; ties go to the shortest.

    ``sequence_optimal`` takes one hint per sample, with the largest overlap summed over its unmasked tokens;
    ``token_optimal`` the largest overlap at each token; ``shortest`` looks at no overlap. A sample that has no hint
    gets 0, which the caller must mask.
    """
    match rule:
        case "sequence_optimal":
            score_BTH = (count_BTH * mask_BT[..., None]).sum(1, keepdim=True).expand_as(count_BTH)
        case "token_optimal":
            score_BTH = count_BTH
        case "shortest":
            score_BTH = torch.zeros_like(count_BTH)
        case _:
            raise ValueError(f"rule {rule!r} chooses no hint: use sequence_optimal, token_optimal or shortest")
    score_BTH = torch.where(hint_mask_BH[:, None, :], score_BTH, -1)
    # torch.argmax does not promise which of several maxima it returns.
    hints = score_BTH.shape[-1]
    index_H = torch.arange(hints, device=score_BTH.device)
    is_best_BTH = score_BTH == score_BTH.amax(-1, keepdim=True)
    return torch.where(is_best_BTH, index_H, hints).amin(-1)


def take_hint(value_BTHX: Tensor, choice_BT: Tensor) -> Tensor:
    """The chosen hint's part of ``value``: ``[B, T, H, ...] -> [B, T, ...]``."""
    index = choice_BT.reshape(*choice_BT.shape, *[1] * (value_BTHX.ndim - 2))
    return torch.take_along_dim(value_BTHX, index, dim=2).squeeze(2)
