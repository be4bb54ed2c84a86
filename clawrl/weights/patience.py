"""How long a publish may keep the trainer's other ranks waiting: they sit in a collective until rank 0 is through.

A publish takes what its own time limits allow (`PublishConfig.whole_s`), plus what rank 0 waits for a coordinator that
is away: at each of its calls, and once more at rest after a failure. That wait, the *patience* of a call, is what the
collectives' time limit leaves over.
"""

from __future__ import annotations

from clawrl.weights.config import PublishConfig

LONGEST_S = 300.0
"""Of a call that must not be lost, where nothing else limits it."""
LONGEST_REST_S = 60.0
CALLS = 6
"""Of the coordinator in one publish: its number, what must stay on disk (before others are put aside, and before they
are deleted), begin, finish, and abort where that failed."""
WAITS = CALLS + 1
"""With the rest itself."""


def patience_s(publish: PublishConfig, *, collective_timeout_s: float, world: int, least_s: float) -> float:
    """How long rank 0 may wait for the answer to one call. Alone it keeps nobody waiting.

    ``least_s`` is what there is in every configuration that is let in: see `why_too_impatient`.
    """
    if world == 1:
        return LONGEST_S
    return min(LONGEST_S, max(least_s, (collective_timeout_s - publish.whole_s) / WAITS))


def patience_of_one_call_s(*, collective_timeout_s: float, world: int) -> float:
    """The same where the others wait for a call or two and not for a publish."""
    return LONGEST_S if world == 1 else min(LONGEST_S, collective_timeout_s / 3)


def longest_publish_s(publish: PublishConfig, patience: float) -> float:
    """The longest that rank 0 is in one publish, which may have failed and be followed by the rest."""
    return publish.whole_s + WAITS * patience


def why_too_impatient(
    publish: PublishConfig, *, collective_timeout_s: float, world: int, least_patience_s: float
) -> str | None:
    """Why the other ranks would give up on a publish in which nothing is wrong, if they would."""
    longest_s = longest_publish_s(publish, least_patience_s)
    if world == 1 or collective_timeout_s >= longest_s:
        return None
    return (
        f"trainer.training.collective_timeout_s: {collective_timeout_s:g}, but a publish may take {longest_s:g} s "
        f"while the other ranks wait: publish.fetch_timeout_s {publish.fetch_timeout_s:g}, twice prepare_timeout_s "
        f"{publish.prepare_timeout_s:g}, twice transfer_timeout_s {publish.transfer_timeout_s:g} (or once with "
        f"go_back_timeout_s {publish.go_back_timeout_s:g}), commit_timeout_s {publish.commit_timeout_s:g}, and {WAITS} "
        f"times trainer.training.poll_s {least_patience_s:g} for the coordinator; raise the one or lower the others"
    )
