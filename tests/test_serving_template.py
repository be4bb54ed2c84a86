"""Messages to prompt ids, and the context that they must leave."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clawrl.messages import Message, SamplingParams, ToolCall
from clawrl.serving.errors import ApiError
from clawrl.serving.template import ChatRenderer, one_call_each
from tests.tiny_model import build_tiny_model

TALK = [Message(role="system", content="be brief"), Message(role="user", content="good 🙂")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


def test_a_prompt_is_the_chat_template_s_ids_ready_for_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = ChatRenderer(tokenizer, 512).render(TALK)
    assert isinstance(ids, list) and all(type(i) is int for i in ids)
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\ngood 🙂<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_prompt_must_leave_room_for_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    length = len(ChatRenderer(tokenizer, 512).render(TALK))
    assert len(ChatRenderer(tokenizer, length + 1).render(TALK)) == length
    with pytest.raises(ApiError) as caught:
        ChatRenderer(tokenizer, length).render(TALK)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert f"maximum context length is {length} tokens" in caught.value.message
    assert f"({length} in the messages" in caught.value.message


def test_a_completion_budget_is_clamped_to_what_the_prompt_leaves(tokenizer: PreTrainedTokenizerFast) -> None:
    renderer = ChatRenderer(tokenizer, 100)
    asked = SamplingParams(temperature=0.5, max_tokens=64, stop=("x",))
    assert renderer.fit(asked, 36) == asked
    assert renderer.fit(asked, 90) == SamplingParams(temperature=0.5, max_tokens=10, stop=("x",))
    assert renderer.fit(asked, 99).max_tokens == 1


def test_what_the_template_refuses_is_a_400_with_its_words(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ApiError, match="roles must alternate") as caught:
        ChatRenderer(tokenizer, 100).render(TALK)
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_tokenizer_without_a_template_is_refused_at_start(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="chat template"):
        ChatRenderer(tokenizer, 100)


# As Llama's own, which refuse parallel calls though the model makes them.
ONE_AT_A_TIME = (
    "{%- for m in messages %}{%- if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{- raise_exception('one call at a time') }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for c in m.tool_calls or [] %}{{- c.function.name }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if tools %}{{- tools | length }}{%- endif %}"
)


def _two_calls() -> list[Message]:
    calls = (ToolCall(id="a", name="look", arguments="{}"), ToolCall(id="b", name="listen", arguments="{}"))
    return [
        Message(role="user", content="Well?"),
        Message(role="assistant", content="I try both.", reasoning="hm", tool_calls=calls),
        Message(role="tool", content="fog", tool_call_id="a"),
        Message(role="tool", content="horns", tool_call_id="b"),
        Message(role="assistant", content="Fog and horns."),
    ]


def test_parallel_calls_are_told_one_by_one_to_a_template_that_takes_no_others(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = ONE_AT_A_TIME
    text = ChatRenderer(strict, 200).text(_two_calls())
    turns = [turn.replace("<|im_end|>\n", "") for turn in text.split("<|im_start|>")[1:]]
    assert turns == [
        "user\nWell?", "assistant\nI try both.look", "tool\nfog", "assistant\nlisten", "tool\nhorns",
        "assistant\nFog and horns.",
    ]  # fmt: skip


def test_a_result_stays_with_the_calls_that_it_follows_though_ids_come_again() -> None:
    again = [
        Message(role="tool", content=text, tool_call_id=at) for at, text in (("b", "gulls"), ("x", "?"), ("a", "rain"))
    ]
    said = one_call_each([*_two_calls(), *_two_calls()[:2], *again])
    assert [message.content for message in said if message.role == "tool"] == ["fog", "horns", "rain", "gulls", "?"]
    assert all(len(message.tool_calls) < 2 for message in said)
    assert [message.reasoning for message in said if message.tool_calls] == ["hm", "", "hm", ""]
