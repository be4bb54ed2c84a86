"""What each token of an answer is credited with, as far as the ledger alone can tell, and in words what that number is.

In: a turn with its judgement and its teacher's targets, the step that took it, the deployment's method. Out: one
advantage a token, its formula with the figures filled in, and what to know of it, or why there is none.

An advantage is the choice's own: how much better than expected the token was, in the reward's unit and in nats. For the
sampled token it is what ``-loss`` is weighed by. The methods that compare ``k`` tokens of each position take the
teacher's term in expectation over these instead of at the sampled one: with the difference of each as its advantage,
weighed by the policy's probabilities, and the gradient of a reverse KL is of the same form. The number is then the
sampled token's share of that.

Nothing is stored for this but the baseline that a step used. Three things only the trainer knew: its own log-probs, for
which the engine's stand in; which tokens were the policy's ``k`` likeliest; and which of several hints it took, for
which the shortest stands in. The method is the one that the deployment has now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clawrl.ledger.life import TurnText
from clawrl.ledger.views import StepRow
from clawrl.messages import TeacherTargets, TurnState
from clawrl.methods.binary_rl import BinaryRLConfig
from clawrl.methods.combine import CombineConfig
from clawrl.methods.combine_topk import CombineTopKConfig
from clawrl.methods.opd import OPDConfig
from clawrl.methods.opd_topk import OPDTopKConfig
from clawrl.methods.plain import RewardConfig
from clawrl.methods.topk import TopKConfig, fitting
from clawrl.strict import StrictConfig

KNOWN = (BinaryRLConfig, CombineConfig, CombineTopKConfig, OPDConfig, OPDTopKConfig)
_NOT_YET = (TurnState.SERVED, TurnState.AWAITING_NEXT, TurnState.JUDGING)
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """``advantages`` has an entry for each token, ``None`` where its own is not known; there is none without ``of``."""

    advantages: tuple[float | None, ...] | None = None
    of: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """``values_R``: NaN where not known."""

    values_R: _Floats
    of: str
    note: str | None = None


def credit_of(
    text: TurnText | None, state: TurnState, step: StepRow | None, method: StrictConfig, loss: str | None
) -> Credit:
    """``loss`` is a function that replaces the method's own."""
    if text is None:
        return Credit()
    # Not isinstance: a method of somebody's own may have settings that extend these.
    if loss is not None or type(method) not in KNOWN:
        return Credit(note=f"only {loss or getattr(method, 'name', 'the method')} knows what it credits tokens with")
    if state is TurnState.DROPPED:
        return Credit(note="it was dropped: nothing is credited")
    if state in _NOT_YET:
        return Credit(note="it is not judged yet")
    rewarded = _reward_term(text, step, method) if isinstance(method, RewardConfig) else None
    if isinstance(rewarded, str):
        return Credit(note=rewarded)
    terms = [term for term in (rewarded, _teacher_term(text, method)) if term is not None]
    if not terms:
        return Credit(note="neither a reward nor a teacher credits it")
    total_R = np.sum([term.values_R for term in terms], axis=0)
    return Credit(
        advantages=tuple(None if np.isnan(value) else float(value) for value in total_R),
        of=" + ".join(term.of for term in terms),
        note="; ".join(term.note for term in terms if term.note) or None,
    )


def _reward_term(text: TurnText, step: StepRow | None, method: RewardConfig) -> _Term | str | None:
    """The same for every token; ``None`` without a reward, or why it is not known."""
    reward = 0.0 if text.judgement is None else text.judgement.reward or 0.0
    if not reward:
        return None
    if method.baseline == "none":
        noted: Any = 0.0
    elif method.baseline != "running":
        return f"with baseline: {method.baseline} the reward is compared with its group's, which the trainer alone did"
    elif step is None:
        return "the running baseline that is taken off the reward is known once the turn's step was taken"
    else:
        noted = step.stats.get("method_baseline")
        if not isinstance(noted, int | float):
            return "the baseline of the turn's step was not recorded"
    weight = method.w_rl if isinstance(method, CombineConfig | CombineTopKConfig) else 1.0
    value = weight * (reward - float(noted))
    without = method.baseline == "none"
    of = (
        f"{_times(weight)}reward {reward:.3g}"
        if without
        else f"{_times(weight)}(reward {reward:.3g} - baseline {noted:.3g})"
    )
    return _Term(values_R=np.full(len(text.turn.response_ids), value), of=of)


def _teacher_term(text: TurnText, method: StrictConfig) -> _Term | None:
    teacher = text.targets
    # Targets of a response of another length cannot be laid beside its tokens.
    if teacher is None or teacher.logps.shape[1] != len(text.turn.response_ids):
        return None
    weight = method.w_opd if isinstance(method, CombineConfig | CombineTopKConfig) else 1.0
    gap_R = teacher.logps[0].astype(np.float64) - text.turn.response_logps
    if isinstance(method, OPDConfig | CombineConfig):
        clip = method.advantage_clip
        return _Term(values_R=weight * _limited(gap_R, clip), of=_teacher_words(weight, clip))
    if isinstance(method, OPDTopKConfig | CombineTopKConfig) and fitting(teacher, method) is not None:
        compares_kl = method.objective == "tail_kl"
        values_R = _in_kl(text, teacher, method, gap_R) if compares_kl else _clipped(text, teacher, method, gap_R)
        clip = 0.0 if compares_kl else method.difference_clip
        note = _topk_note(teacher, method, compares_kl=compares_kl)
        return _Term(values_R=weight * values_R, of=_teacher_words(weight, clip), note=note)
    return None


def _clipped(text: TurnText, teacher: TeacherTargets, method: TopKConfig, gap_R: _Floats) -> _Floats:
    """As `clawrl.loss.difference`: what the teacher does not list counts if its clipped difference is certain."""
    listed_R = _among(text, teacher, method.teacher_top_k)
    clip = method.difference_clip
    bound_R = teacher.topk_logps[0].min(-1).astype(np.float64) - text.turn.response_logps
    unlisted_R = np.where((bound_R <= -clip) & (clip > 0), -clip, 0.0)
    return np.where(_supported(text, teacher, method), np.where(listed_R, _limited(gap_R, clip), unlisted_R), 0.0)


def _in_kl(text: TurnText, teacher: TeacherTargets, method: TopKConfig, gap_R: _Floats) -> _Floats:
    """As `clawrl.loss.distill.tail_kl`: other tokens are in one bin, whose mass the trainer alone knew."""
    own_bin_R = _supported(text, teacher, method) & _among(text, teacher, method.teacher_top_k)
    return np.where(own_bin_R, gap_R, np.nan)


def _supported(text: TurnText, teacher: TeacherTargets, method: TopKConfig) -> npt.NDArray[np.bool_]:
    """As far as the teacher's list tells: which tokens were the policy's likeliest it does not."""
    if method.support == "student":
        return np.ones(len(text.turn.response_ids), dtype=np.bool_)
    return _among(text, teacher, method.k)


def _among(text: TurnText, teacher: TeacherTargets, k: int) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (teacher.topk_ids[0, :, :k] == text.turn.response_ids[:, None]).any(-1)
    return found


def _limited(gap_R: _Floats, clip: float) -> _Floats:
    return gap_R.clip(-clip, clip) if clip > 0 else gap_R


def _teacher_words(weight: float, clip: float) -> str:
    within = f", within {clip:g} nat{'' if clip == 1.0 else 's'}" if clip > 0 else ""
    return f"{_times(weight)}(teacher's log-prob - policy's{within})"


def _times(weight: float) -> str:
    return "" if weight == 1.0 else f"{weight:g} * "


def _topk_note(teacher: TeacherTargets, method: TopKConfig, *, compares_kl: bool) -> str:
    said = [f"the teacher's term is taken over {method.k} tokens, weighed by the policy's probabilities"]
    if method.support != "teacher":
        said.append(
            f"it assumes the token among the policy's {method.k} likeliest, which is sure above {_sure(method.k)}"
        )
    if compares_kl:
        said.append("a token outside them has no number")
    if len(teacher.hints) > 1 and method.hint_selection != "shortest":
        said.append(f"of {len(teacher.hints)} hints the shortest is shown, and the step may have taken another")
    return "; ".join(said)


def _sure(k: int) -> str:
    """More than ``k`` tokens cannot each have this probability."""
    return f"{100 / (k + 1):.1f} %"
