"""What privacy costs the ledger: turns that are announced, recorded, given evidence and judged, per CPU second.

    python -m bench.privacy [--turns 2000] [--history 20] [--words 60] [--tokens 1500]

Every session goes on for ``--history`` messages, each of them stored with every later request, as a client sends them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clawrl.ledger import Ledger
from clawrl.ledger.codec import Codec, PlainVault
from clawrl.ledger.config import LedgerConfig
from clawrl.messages import (
    Arrival,
    FinishReason,
    Judgement,
    Message,
    SamplingParams,
    Turn,
    TurnId,
    TurnKind,
    Verdict,
    VersionSpan,
)
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.opening import open_keys, open_ledger
from clawrl.privacy.redactor import Redactor, finders_of
from clawrl.serving.sessions import make_arrival, reply_hash

ALL = {"redaction": {"builtin": ["token", "private_key", "email", "credit_card", "iban", "phone"]}}
_PER_COMMIT = 16


def turns(count: int, history: int, words: int, tokens: int) -> list[tuple[Arrival, Turn]]:
    numbers = np.random.default_rng(7)
    made: list[tuple[Arrival, Turn]] = []
    talk: tuple[Message, ...] = ()
    for number in range(count):
        if len(talk) >= history:
            talk = ()
        text = " ".join(f"word{n}" for n in numbers.integers(0, 5_000, words))
        talk = (*talk, Message(role="user", content=text))
        arrival = make_arrival(
            turn_id=TurnId(f"t{number}"), messages=talk, session=f"s{number // history}", owner="ann",
            kind=TurnKind.MAIN, ends_session=False, arrived_at=float(number),
        )  # fmt: skip
        answer = Message(role="assistant", content=text[::-1])
        talk = (*talk, answer)
        size = tokens // 10
        made.append(
            (
                arrival,
                Turn(
                    turn_id=arrival.turn_id,
                    arrival=arrival,
                    reply_hash=reply_hash(arrival.messages_hash, answer),
                    response_text=answer.content,
                    answer=answer,
                    prompt_ids=numbers.integers(0, 150_000, tokens - size).astype(np.int32),
                    response_ids=numbers.integers(0, 150_000, size).astype(np.int32),
                    response_logps=-np.ones(size, np.float32),
                    spans=(VersionSpan(start=0, end=size, version=0),),
                    sampling=SamplingParams(),
                    finish_reason=FinishReason.STOP,
                    started_at=float(number),
                    finished_at=float(number) + 1,
                    replica="r",
                ),
            )
        )
    return made


def run(ledger: Ledger, made: list[tuple[Arrival, Turn]]) -> float:
    began = time.process_time()
    for start in range(0, len(made), _PER_COMMIT):
        with ledger.transaction():
            for arrival, turn in made[start : start + _PER_COMMIT]:
                case = ledger.arrive(arrival).to_judge
                ledger.record(turn)
                if case is not None:
                    ledger.judged(
                        Judgement(
                            turn_id=case.turn_id, verdict=Verdict.GOOD, score=1.0, votes=(1,), judge="j", seconds=0.1
                        )
                    )
    return len(made) / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, value in (("turns", 2_000), ("history", 20), ("words", 60), ("tokens", 1_500), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    made = turns(args.turns, args.history, args.words, args.tokens)

    def with_keys(**privacy: object) -> Callable[[Path], Ledger]:
        config = PrivacyConfig.model_validate(privacy)

        def opened(state: Path) -> Ledger:
            redactor = Redactor(finders_of(config.redaction))
            return open_ledger(state, LedgerConfig(), config, keys=open_keys(state, config), redactor=redactor)

        return opened

    ways: dict[str, Callable[[Path], Ledger]] = {
        "nothing": lambda state: Ledger(state / "ledger.sqlite", LedgerConfig()),
        "sealed": with_keys(redaction={"builtin": []}),
        "sealed, default rules": with_keys(),
        "sealed, all built-in rules": with_keys(**ALL),
    }
    best = dict.fromkeys(ways, 0.0)
    # In turns, so that what else the machine does falls on all of them.
    for _ in range(args.repeats):
        for name, opened in ways.items():
            with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "state") as ledger:
                best[name] = max(best[name], run(ledger, made))
    size = sum(len(Codec(PlainVault()).pack_messages("", turn.arrival.messages)) for _, turn in made) / len(made)
    sys.stdout.write(f"{size / 1024:.1f} KiB of messages and {args.tokens} token ids a turn\n")
    for name, rate in best.items():
        sys.stdout.write(f"{name:28} {rate:7.0f} turns/s  {1e6 / rate:6.0f} us a turn  {rate / best['nothing']:6.1%}\n")


if __name__ == "__main__":
    main()
