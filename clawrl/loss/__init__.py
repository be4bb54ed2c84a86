"""Pure tensor functions for policy losses. Imports torch and nothing of ours; inputs are never modified.

Shape letters: ``B`` samples in a micro-batch, ``T`` token columns, ``V`` vocabulary. A ``mask_BT`` is boolean and
true where a token trains. Log-probabilities and KL are in nats.
"""

from clawrl.loss.aggregate import sample_mean, token_mean
from clawrl.loss.importance import truncated_importance_weight
from clawrl.loss.kl import k3_kl
from clawrl.loss.logprobs import predictors, token_logps
from clawrl.loss.policy import clipped_policy_loss

__all__ = [
    "clipped_policy_loss",
    "k3_kl",
    "predictors",
    "sample_mean",
    "token_logps",
    "token_mean",
    "truncated_importance_weight",
]
