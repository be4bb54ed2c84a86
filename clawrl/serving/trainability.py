"""Whether a served turn may train at all, decided from facts known when its last token is sampled.

A turn trains only if it was drawn from the plain distribution: engines differ in whether their log-probs are taken
before or after a filter, so that a filtered turn has no log-prob that a trainer could trust. Nothing is cut to fit.
What the next request or the judge says is decided elsewhere, later.
"""

from __future__ import annotations

from clawrl.messages import DropReason, FinishReason, Turn, TurnKind


def drop_reason(turn: Turn, max_sample_tokens: int) -> DropReason | None:
    """The first reason that applies, or ``None``. Permission comes first: it holds whatever else is true."""
    checks = (
        (DropReason.NOT_PERMITTED, not turn.arrival.may_train),
        (DropReason.SIDE, turn.arrival.kind is TurnKind.SIDE),
        (DropReason.ABORTED, turn.finish_reason is FinishReason.ABORTED),
        (DropReason.FAILED, turn.finish_reason is FinishReason.ERROR),
        (DropReason.EMPTY, is_empty(turn)),
        (DropReason.GREEDY, turn.sampling.greedy),
        (DropReason.FILTERED, turn.sampling.filtered),
        (DropReason.TOO_LONG, len(turn.prompt_ids) + len(turn.response_ids) > max_sample_tokens),
    )
    return next((reason for reason, applies in checks if applies), None)


def is_empty(turn: Turn) -> bool:
    """Nobody can react to what cannot be seen: a lone end token, whitespace or mere reasoning is no answer."""
    return not (turn.answer.content.strip() or turn.answer.tool_calls)
