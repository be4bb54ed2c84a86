"""Answers held to a schema: whatever random weights say is JSON of it, also across a change of weights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from clawrl.engine.errors import UnsupportedRequest
from clawrl.engine.protocol import TokenChunk
from clawrl.messages import FinishReason
from tests.engine_tools import cold_logps, collect, generate, publish, request, running_engine, weights_of

PROMPT = list(range(10, 40))
PLACE = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["harbour", "bridge"]},
        "open": {"type": "boolean"},
        "name": {"type": "string", "maxLength": 8},
        "sizes": {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 3},
    },
    "required": ["kind", "open", "name", "sizes"],
    "additionalProperties": False,
}


def check_place(text: str) -> None:
    place = json.loads(text)
    assert list(place) == ["kind", "open", "name", "sizes"]
    assert place["kind"] in ("harbour", "bridge") and isinstance(place["open"], bool)
    assert len(place["name"]) <= 8 and len(place["sizes"]) <= 3 and set(place["sizes"]) <= {1, 2, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_random_weights_say_json_of_the_schema_and_end_there(tiny_folder: Path, temperature: float) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            for _ in range(5):
                answer = await generate(
                    engine, PROMPT, temperature=temperature, max_tokens=200, json_schema=json.dumps(PLACE)
                )
                assert answer.finish is FinishReason.STOP
                check_place(engine.tokenizer.decode(answer.ids, skip_special_tokens=True))

    asyncio.run(run())


def test_the_answers_beside_it_are_drawn_as_ever(tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            held, free, other = await asyncio.gather(
                generate(engine, PROMPT, max_tokens=200, json_schema=json.dumps(PLACE)),
                generate(engine, PROMPT[5:], max_tokens=40),
                generate(engine, PROMPT, max_tokens=60, json_schema='{"enum": ["yes", "no"]}'),
            )
            check_place(engine.tokenizer.decode(held.ids, skip_special_tokens=True))
            assert json.loads(engine.tokenizer.decode(other.ids, skip_special_tokens=True)) in ("yes", "no")
            np.testing.assert_allclose(free.logps, cold_logps(tiny_folder, free), atol=1e-4)

    asyncio.run(run())


def test_an_answer_goes_on_as_json_when_the_weights_change_under_it(tiny_folder: Path, other_tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            asked = request(PROMPT, max_tokens=200, json_schema=json.dumps(PLACE))
            chunks: list[TokenChunk] = []
            async for chunk in engine.generate(asked):
                chunks.append(chunk)
                if len(chunks) == 3:
                    await publish(engine, 1, weights_of(other_tiny_folder))
            answer = collect(np.asarray(PROMPT), chunks)
            assert set(answer.versions.tolist()) == {0, 1}
            check_place(engine.tokenizer.decode(answer.ids, skip_special_tokens=True))

    asyncio.run(run())


@pytest.mark.parametrize("schema", ['{"type": "nothing"}', '{"minimum": 5, "maximum": 1, "type": "number"}', "[]"])
def test_a_schema_that_means_nothing_is_refused_before_anything_is_drawn(tiny_folder: Path, schema: str) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            with pytest.raises(UnsupportedRequest, match="schema") as caught:
                await generate(engine, PROMPT, max_tokens=20, json_schema=schema)
            assert caught.value.param == "json_schema"
            assert engine.slots.running == 0
            await generate(engine, PROMPT, max_tokens=5)

    asyncio.run(run())
