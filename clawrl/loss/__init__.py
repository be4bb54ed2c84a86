"""Pure tensor functions for policy losses. Imports torch and nothing of ours; inputs are never modified.

Shape letters: ``B`` samples in a micro-batch, ``T`` token columns, ``V`` vocabulary, ``H`` hints, ``K`` tokens that a
teacher lists (best first), ``k`` the top-k used, ``S`` ids in a support. A ``mask_BT`` is boolean and true where a
token trains. Log-probabilities and KL are in nats.
"""

from clawrl.loss.aggregate import sample_mean, token_mean
from clawrl.loss.difference import DifferenceClip, difference_clip_loss, known_ids
from clawrl.loss.distill import tail_kl, token_advantage
from clawrl.loss.distribution import HeadRows, LogitRows, Rows, TokenDistribution
from clawrl.loss.hint_choice import choose_hint, overlap_count, take_hint
from clawrl.loss.importance import truncated_importance_weight
from clawrl.loss.kl import kl_estimate, kl_penalty
from clawrl.loss.policy import clipped_policy_loss
from clawrl.loss.support import build_support, lookup
from clawrl.loss.vocabulary import VocabularyHead, head_entropy, head_logps, head_logps_and_entropy, head_topk

__all__ = [
    "DifferenceClip",
    "HeadRows",
    "LogitRows",
    "Rows",
    "TokenDistribution",
    "VocabularyHead",
    "build_support",
    "choose_hint",
    "clipped_policy_loss",
    "difference_clip_loss",
    "head_entropy",
    "head_logps",
    "head_logps_and_entropy",
    "head_topk",
    "kl_estimate",
    "kl_penalty",
    "known_ids",
    "lookup",
    "overlap_count",
    "sample_mean",
    "tail_kl",
    "take_hint",
    "token_advantage",
    "token_mean",
    "truncated_importance_weight",
]
