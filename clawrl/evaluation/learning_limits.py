"""Did a run that trained on past the moment from which its preference held collapse? A verdict on its figures; pure.

A policy that goes on learning may give up what nobody complains of: it says ever less, never ends, leaves the language
or the question, or drifts away from where it started. Each limit below is on the worst stretch that followed, so one
is enough; and a run that saw fewer updates than it was to see proves nothing.
"""

from collections.abc import Mapping
from typing import Any

LEAST_ACCEPTED = 0.5
FEWEST_WORDS = 5.0
MOST_TRUNCATED = 0.5
# Nats per token, a share, and nats per token; the first two against the run's own first answers.
LARGEST_FLUENCY_LOSS = 0.5
LEAST_LIFT_KEPT = 0.5
MOST_KL = 2.0


def collapse_problems(figures: Mapping[str, Any]) -> list[str]:
    """What is wrong with the run that these `learning_figures` are of, one line each.

    Empty for a run that stayed sound, and for one that was not to train past holding.
    """
    past = figures["plan"]["past"]
    if not past:
        return []
    problems = []
    if figures["stopped_by"]:
        problems.append(f"an alarm stopped the training: {figures['stopped_by']}")
    if figures["sessions_until_held"] is None:
        return [*problems, f"the preference never held in {figures['sessions']} sessions"]
    if (applied := figures["updates_past_held"] or 0) < past:
        problems.append(f"{applied} updates were applied past holding, {past} wanted (ended: {figures['ended']})")
    if figures["after_held"] is None:
        return [*problems, "no session followed once the preference held"]
    return problems + _beyond_limits(figures["first"], figures["after_held"])


def _beyond_limits(first: Mapping[str, Any], worst: Mapping[str, Any]) -> list[str]:
    fluency, lift = first["fluency"], first["lift"]
    least = {
        "least_accepted": LEAST_ACCEPTED,
        "fewest_words": FEWEST_WORDS,
        "least_fluency": None if fluency is None else fluency - LARGEST_FLUENCY_LOSS,
        "least_lift": None if lift is None else lift * LEAST_LIFT_KEPT,
    }
    most = {"most_truncated": MOST_TRUNCATED, "most_kl": MOST_KL}
    problems = []
    for name, limit in {**least, **most}.items():
        found, title = worst[name], name.replace("_", " ")
        if found is None or limit is None:
            problems.append(f"{title}: not measured")
        elif found < limit if name in least else found > limit:
            problems.append(f"{title}: {found:.2f}, at {'least' if name in least else 'most'} {limit:.2f} wanted")
    return problems
