"""Prompts that go on from the exact ids of the turns before them, and when they must not."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clawrl.messages import (
    Arrival,
    FinishReason,
    Message,
    SamplingParams,
    TemplateInputs,
    ToolCall,
    Turn,
    TurnId,
    TurnKind,
    VersionSpan,
)
from clawrl.serving.prompts import Prompt, PromptBuilder
from clawrl.serving.sessions import make_arrival, reply_hash
from clawrl.serving.template import ChatRenderer
from tests.tiny_model import build_tiny_model

# Earlier reasoning is dropped once the user speaks again, as in Qwen3's template; tool calls are written as JSON.
THINKING = (
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.reasoning_content and loop.index0 > ns.last %}{{ '<think>' + m.reasoning_content + '</think>' }}"
    "{%- endif %}"
    "{{ m.content }}{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function | tojson + '</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    made: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(build_tiny_model(tmp_path_factory.mktemp("m") / "m"))
    return made


def builder(tokenizer: PreTrainedTokenizerFast, capacity: int = 10_000, context: int = 2_000) -> PromptBuilder:
    return PromptBuilder(
        ChatRenderer(tokenizer, context), lambda token: str(tokenizer.convert_ids_to_tokens(token)), capacity=capacity
    )


def ask(*messages: Message, owner: str = "o", inputs: TemplateInputs | None = None) -> Arrival:
    return make_arrival(
        turn_id=TurnId("t"), messages=messages, session="s", owner=owner, kind=TurnKind.MAIN, ends_session=False,
        arrived_at=time.time(), inputs=inputs or TemplateInputs(),
    )  # fmt: skip


def user(text: str) -> Message:
    return Message(role="user", content=text)


def answered(
    prompts: PromptBuilder,
    arrival: Arrival,
    answer: Message,
    response: list[int],
    finish: FinishReason = FinishReason.STOP,
) -> Prompt:
    """``answer`` is what a client sees of the ids that were sampled."""
    prompt = prompts.build(arrival)
    turn = Turn(
        turn_id=arrival.turn_id, arrival=arrival, reply_hash=reply_hash(arrival.messages_hash, answer),
        response_text=answer.content, answer=answer, prompt_ids=prompt.ids,
        response_ids=np.asarray(response, dtype=np.int32),
        response_logps=np.zeros(len(response), dtype=np.float32),
        spans=(VersionSpan(start=0, end=len(response), version=0),), sampling=SamplingParams(),
        finish_reason=finish, started_at=0.0, finished_at=0.0, replica="r",
    )  # fmt: skip
    prompts.remember(turn, prompt)
    return prompt


def letters(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Another spelling of the text than the tokenizer's own: one id a letter."""
    return [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in text]


def test_the_next_prompt_begins_with_the_very_ids_that_were_sampled(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts, eos = builder(tokenizer), int(tokenizer.eos_token_id)
    opening = ask(user("tell me about plants"))
    response = [*letters(tokenizer, "plants are green"), eos]
    assert response[:-1] != tokenizer.encode("plants are green", add_special_tokens=False)
    answer = Message(role="assistant", content="plants are green")
    first = answered(prompts, opening, answer, response)
    second = prompts.build(ask(*opening.messages, replace(answer, content=" plants are green\n"), user("and rain?")))
    assert second.reused == len(first.ids) + len(response)
    assert second.ids[: second.reused].tolist() == [*first.ids.tolist(), *response]
    tail = "\n<|im_start|>user\nand rain?<|im_end|>\n<|im_start|>assistant\n"
    assert second.ids[second.reused :].tolist() == tokenizer.encode(tail, add_special_tokens=False)
    third = prompts.build(ask(*opening.messages, answer))
    assert third.reused == second.reused, "also when nobody has spoken since"


def test_an_answer_that_was_cut_off_is_ended_by_the_template(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts, eos = builder(tokenizer), int(tokenizer.eos_token_id)
    answer = Message(role="assistant", content="plan")
    first = answered(prompts, ask(user("hi")), answer, letters(tokenizer, "plan"), FinishReason.LENGTH)
    second = prompts.build(ask(user("hi"), answer, user("go on")))
    assert second.reused == len(first.ids) + 4 and second.ids[second.reused] == eos


@pytest.mark.parametrize(
    "end", [" END", "<|im_start|>"], ids=["a stop string", "an end that the template does not write"]
)
def test_an_answer_with_another_end_than_its_history_is_rendered_afresh(
    tokenizer: PreTrainedTokenizerFast, end: str
) -> None:
    prompts = builder(tokenizer)
    answer = Message(role="assistant", content="plan")
    sampled = [*letters(tokenizer, "plan"), *tokenizer.encode(end, add_special_tokens=False)]
    answered(prompts, ask(user("hi")), answer, sampled)
    second = prompts.build(ask(user("hi"), answer, user("go on")))
    assert second.reused == 0 and end + "<|im_end|>" not in tokenizer.decode(second.ids)


def test_another_history_owner_or_template_argument_is_rendered_afresh(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts, eos = builder(tokenizer), int(tokenizer.eos_token_id)
    answer = Message(role="assistant", content="green")
    answered(prompts, ask(user("hi")), answer, [*letters(tokenizer, "green"), eos])
    assert prompts.build(ask(user("hi"), answer, user("x"))).reused > 0
    for other in (
        ask(user("hello"), answer, user("x")),
        ask(user("hi"), replace(answer, content="Green"), user("x")),
        ask(user("hi"), answer, user("x"), owner="p"),
        ask(user("hi"), answer, user("x"), inputs=TemplateInputs(arguments='{"enable_thinking": false}')),
    ):
        prompt = prompts.build(other)
        assert prompt.reused == 0
        assert prompt.ids.tolist() == ChatRenderer(tokenizer, 2_000).render(other.messages, other.inputs)


def test_a_tool_call_that_the_client_wrote_anew_keeps_the_ids_of_the_model(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template, kept = THINKING, tokenizer.chat_template
    try:
        prompts, eos = builder(tokenizer), int(tokenizer.eos_token_id)
        said = '<tool_call>{"name":"look",  "arguments":{"at": 5.0}}</tool_call>'
        answer = Message(role="assistant", tool_calls=(ToolCall(id="call_1", name="look", arguments='{"at": 5.0}'),))
        first = answered(prompts, ask(user("hi")), answer, [*letters(tokenizer, said), eos])
        replay = replace(answer, tool_calls=(ToolCall(id="call1", name="look", arguments='{"at":5}'),))
        second = prompts.build(ask(user("hi"), replay, Message(role="tool", content="a wall", tool_call_id="call1")))
        assert second.reused == len(first.ids) + len(said) + 1
    finally:
        tokenizer.chat_template = kept


def test_reasoning_is_kept_within_a_tool_loop_and_gone_with_the_next_question(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template, kept = THINKING, tokenizer.chat_template
    try:
        prompts, eos = builder(tokenizer), int(tokenizer.eos_token_id)
        answer = Message(role="assistant", content="green", reasoning="hm hm")
        said = [*letters(tokenizer, "<think>hm hm</think>green"), eos]
        answered(prompts, ask(user("hi")), answer, said)
        assert prompts.build(ask(user("hi"), answer, Message(role="tool", content="ok"))).reused > 0
        assert prompts.build(ask(user("hi"), answer, user("next"))).reused == 0
        forgetful = replace(answer, reasoning="")
        assert prompts.build(ask(user("hi"), forgetful, Message(role="tool", content="ok"))).reused == 0
    finally:
        tokenizer.chat_template = kept


def test_the_least_recently_used_turns_are_forgotten_first(tokenizer: PreTrainedTokenizerFast) -> None:
    eos = int(tokenizer.eos_token_id)
    answer = Message(role="assistant", content="green")
    response = [*letters(tokenizer, "green"), eos]
    size = len(builder(tokenizer).build(ask(user("a"))).ids) + len(response)
    prompts = builder(tokenizer, capacity=2 * size)
    for name in ("a", "b"):
        answered(prompts, ask(user(name)), answer, response)
    assert prompts.build(ask(user("a"), answer)).reused == size
    answered(prompts, ask(user("c")), answer, response)
    answered(prompts, ask(user("c")), answer, response)
    assert [prompts.build(ask(user(name), answer)).reused for name in "abc"] == [size, 0, size]


def test_a_prefill_stands_behind_the_prompt_and_counts_towards_the_context(tokenizer: PreTrainedTokenizerFast) -> None:
    plain = builder(tokenizer).build(ask(user("hi")))
    filled = builder(tokenizer).build(ask(user("hi")), prefill=lambda _: "well, ")
    more = tokenizer.encode("well, ", add_special_tokens=False)
    assert filled.ids.tolist() == [*plain.ids.tolist(), *more]
    with pytest.raises(Exception, match="maximum context length"):
        builder(tokenizer, context=len(plain.ids) + 1).build(ask(user("hi")), prefill=lambda _: "well, well, well")


def test_the_arrival_of_another_path_to_the_same_hash_is_not_trusted(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    prompts, eos = builder(tokenizer), int(tokenizer.eos_token_id)
    answer = Message(role="assistant", content="green")
    answered(prompts, ask(user("hi")), answer, [*letters(tokenizer, "green"), eos])
    same_hash = replace(ask(user("hi"), answer), history=(user("hi, and a remark"), answer))
    assert prompts.build(same_hash).reused == 0
