"""The format that a chat template speaks of, its special tokens, and what of an answer a prompt already holds."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_parsing.response_templates import load_response_template

from clawrl.serving.parsing.formats import FORMATS, format_for, visible_ids
from clawrl.serving.parsing.prompt import call_prefix, said_before
from clawrl.serving.parsing.regions import Region

HERMES_PREFIX = '<tool_call>\n{"name":'


@pytest.mark.parametrize(
    ("chat_template", "name"),
    [
        ("{% if tools %}write <tool_call>\n{..}\n</tool_call>{% endif %}", "hermes"),
        ("{{ m.content.split('</think>')[-1] }}", "hermes"),
        ('<|start_header_id|>{{ m.role }}<|end_header_id|> {"name": .., \'"parameters"\': ..}', "llama3"),
        ('<|start_header_id|>{{ m.role }}<|end_header_id|> <tool_call> "parameters"', "hermes"),
        ("<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}", "plain"),
        ("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>", "plain"),
        ("", "plain"),
    ],
)
def test_the_format_is_found_by_the_marks_in_the_chat_template(chat_template: str, name: str) -> None:
    assert format_for(chat_template, "auto").name == name


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_may_be_asked_for_whatever_the_template_says(name: str) -> None:
    assert format_for("<tool_call>", name).name == format_for("", name).name == name


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'hermez'.*'auto', 'hermes', 'llama3', 'plain'"):
        format_for("", "hermez")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_a_sound_response_template_that_leaves_calls_as_text(name: str) -> None:
    fields = FORMATS[name].fields
    loaded = load_response_template({"start_anchor_pattern": "(?!)", "fields": dict(fields)})
    assert set(loaded.fields) == set(fields) <= {region.value for region in Region}
    assert loaded.implicit == "text"
    assert {field.content for field in loaded.fields.values()} == {"text"}
    assert (Region.CALL in fields) == (FORMATS[name].calls is not None)


def test_only_the_special_tokens_among_the_marks_are_kept_visible() -> None:
    raw = Tokenizer(models.WordLevel({"good": 0, "<unk>": 1}, unk_token="<unk>"))
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|python_tag|>", special=True), AddedToken("<|eot_id|>", special=True)])
    raw.add_tokens([AddedToken("<think>", special=False)])
    raw.add_special_tokens([AddedToken("<tool_call>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="<|eot_id|>")
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in ("<|python_tag|>", "<tool_call>")}
    assert visible_ids(FORMATS["llama3"], tokenizer) == {ids["<|python_tag|>"]}
    assert visible_ids(FORMATS["hermes"], tokenizer) == {ids["<tool_call>"]}
    assert visible_ids(FORMATS["plain"], tokenizer) == frozenset()


@pytest.mark.parametrize(
    ("name", "tail", "before"),
    [
        ("hermes", "<|im_start|>assistant\n", ""),
        ("hermes", "<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("hermes", "<|im_start|>assistant\n<think>", "<think>"),
        ("hermes", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("hermes", "what does <think> mean?\n<|im_start|>assistant\n", ""),
        ("hermes", f"a\n{HERMES_PREFIX} 3<|im_end|>\n<|im_start|>assistant\n", ""),
        ("hermes", f"<|im_start|>assistant\n{HERMES_PREFIX}", HERMES_PREFIX),
        ("hermes", f'x{HERMES_PREFIX} "a\\"b", "arguments":', f'{HERMES_PREFIX} "a\\"b", "arguments":'),
        ("hermes", f"<think>\n\n</think>\n\n{HERMES_PREFIX}", f"<think>\n\n</think>\n\n{HERMES_PREFIX}"),
        ("llama3", "assistant<|end_header_id|>\n\n", ""),
        ("llama3", 'assistant<|end_header_id|>\n\n{"name":', '{"name":'),
        ("llama3", '\n\n{"name": "look", "parameters":', '{"name": "look", "parameters":'),
        ("llama3", "<think>\n", ""),
        ("plain", "<think>\n", ""),
        ("hermes", "", ""),
    ],
)
def test_only_the_end_of_the_prompt_belongs_to_the_answer(name: str, tail: str, before: str) -> None:
    assert said_before(FORMATS[name], tail) == before


@pytest.mark.parametrize(
    ("name", "tool", "prefix"),
    [
        ("hermes", None, '<tool_call>\n{"name":'),
        ("hermes", 'lo"ök', '<tool_call>\n{"name": "lo\\"ök", "arguments":'),
        ("llama3", None, '{"name":'),
        ("llama3", "look", '{"name": "look", "parameters":'),
    ],
)
def test_a_forced_call_is_begun_in_the_prompt_and_found_there_again(name: str, tool: str | None, prefix: str) -> None:
    answer_format = FORMATS[name]
    assert call_prefix(answer_format, "assistant\n", tool) == prefix
    assert said_before(answer_format, "assistant\n" + prefix) == prefix


def test_reasoning_that_the_template_opened_is_closed_before_a_forced_call() -> None:
    answer_format, tail = FORMATS["hermes"], "assistant\n<think>\n"
    prefix = call_prefix(answer_format, tail, "look")
    assert prefix == '\n</think>\n\n<tool_call>\n{"name": "look", "arguments":'
    assert said_before(answer_format, tail + prefix) == "<think>\n" + prefix


def test_no_call_can_be_forced_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="'plain' has no tool calls"):
        call_prefix(FORMATS["plain"], "", "look")
