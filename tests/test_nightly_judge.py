"""The judge of the laptop deployment, with its real model, on what displeased and pleased users say in leaving."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clawrl.calibrate import calibrate_deployment
from clawrl.evaluation.user_words import GOODBYES, ONE_SENTENCE_COMPLAINTS, THANKS
from tests.live import REPOSITORY

REQUEST = "What is interesting about bridges?"
LONG = (
    "Bridges are structures that carry roads, railways and people over rivers and valleys. They come in many forms, "
    "such as arches, beams and cables, and some of them are very old, while others were built in recent years and are"
)
SHORT = "Bridges let people cross rivers and valleys that they could not pass before."


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_farewell_does_not_turn_displeasure_into_praise(tmp_path: Path) -> None:
    displeased = [text for texts in ONE_SENTENCE_COMPLAINTS.values() for text in texts]
    said = [(LONG, text, -1) for text in displeased] + [(SHORT, text, 1) for text in THANKS]
    cases = [
        {"request": REQUEST, "response": answer, "evidence": f"{text} {goodbye}", "label": label}
        for answer, text, label in said
        for goodbye in GOODBYES
    ]
    file = tmp_path / "cases.jsonl"
    file.write_text("".join(json.dumps(case) + "\n" for case in cases))
    report = calibrate_deployment(REPOSITORY / "deployments" / "laptop.yaml", file)
    assert report.balanced_accuracy is not None and report.balanced_accuracy > 0.8
    # Praise for an answer that was refused teaches the opposite of what was said.
    assert report.confusion["-1"]["1"] < 0.1 * len(displeased) * len(GOODBYES)
