"""Prompts that have nothing to do with a preference: did a run spoil what the model could do before?

Asked as side turns before and after, so they never train. Some have a known answer, which counts when it stands
anywhere in the reply; some want another form than any preference does (a list, a poem, code).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from clawrl.evaluation.demo_users import Answer
from clawrl.evaluation.measures import Measures, mean_of


@dataclass(frozen=True, slots=True)
class Probe:
    """``known`` are the spellings of the right answer; empty where there is no single one."""

    prompt: str
    known: tuple[str, ...] = ()


PROBES: tuple[Probe, ...] = (
    Probe("What is 7 plus 5?", ("12", "twelve")),
    Probe("How much is 6 times 4?", ("24", "twenty-four")),
    Probe("What is half of 18?", ("9", "nine")),
    Probe("Which is larger, 30 or 13?", ("30", "thirty")),
    Probe("What is the capital of France?", ("Paris",)),
    Probe("Which planet do we live on?", ("Earth",)),
    Probe("How many days are in a week?", ("7", "seven")),
    Probe("What colour is a ripe banana?", ("yellow",)),
    Probe("Which ocean lies between Europe and America?", ("Atlantic",)),
    Probe("What is the plural of 'child'?", ("children",)),
    Probe("Spell the word 'cat' letter by letter.", ("c-a-t", "c a t", "c, a, t")),
    Probe("Translate 'good morning' into French.", ("bonjour",)),
    Probe("What is the Spanish word for 'water'?", ("agua",)),
    Probe("How do you say 'thank you' in German?", ("danke",)),
    Probe("Write a Python function that adds two numbers.", ("def",)),
    Probe("List three kinds of fruit."),
    Probe("Write a two-line poem about snow."),
    Probe("Give me step-by-step instructions for boiling an egg."),
    Probe("Make a shopping list for a pasta dinner."),
    Probe("Write a short letter to a friend who moved away."),
)
_KNOWN = {probe.prompt: probe.known for probe in PROBES}


def knows(answer: Answer) -> bool | None:
    """Whether the known answer stands in the reply, as words of its own; None where there is none."""
    known = _KNOWN.get(answer.question, ())
    if not known:
        return None
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer.text, re.IGNORECASE) for word in known)


def probe_figures(answers: Sequence[Answer], measures: Mapping[str, Measures]) -> dict[str, Any]:
    """``measures`` by turn id, as far as the turns were measured; a figure of nothing is None."""
    known = [found for answer in answers if (found := knows(answer)) is not None]
    measured = mean_of([measures[turn] for answer in answers if (turn := answer.turn_id or "") in measures])
    return {
        "answers": len(answers),
        "known_share": fmean(known) if known else None,
        "finished_share": fmean(answer.finish_reason == "stop" for answer in answers) if answers else None,
        "mean_words": fmean(answer.words for answer in answers) if answers else None,
        "fluency": measured.fluency if measured else None,
        "lift": measured.lift if measured else None,
        "kl": measured.kl if measured else None,
    }
