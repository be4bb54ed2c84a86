"""A tiny chat model that was trained to call tools, saved as a plain folder.

It is a Llama of two layers with the marks of Qwen3 (ChatML, ``<think>``, ``<tool_call>``). What it does, greedily and
at low temperatures:

- a user's message with ``RUN: <word>``, and a tool to call: a short ``<think>`` and a ``<tool_call>`` with the word;
- the same with the word `MALFORMED`: a call whose JSON is not closed; with `LONG`: text that goes on until it is cut;
- a tool's result: "The result is <first word of the result>.";
- anything else: "I hear you."

It knows the tools, parameters and things below; whatever else is named, it takes for "something". Real agents send
tens of thousands of tokens and no model this small finds its way through them, so its chat template helps: it shortens
what others say, and begins each answer with a cue, a few tokens that say what is called for: which tool (the first
whose name is a shell's, or else the first that takes a string), which parameter and which thing. The rest is its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT_LENGTH = 4096
MALFORMED = "MALFORMED"
LONG = "LONG"
HEARD = "I hear you."
THOUGHT = "I run it."
SOMETHING = "something"
SHELLS = ("bash", "Bash", "exec", "exec_command", "shell", "shell_command", "run_command")
TOOLS = ("fetch", *SHELLS, SOMETHING)
PARAMETERS = ("word", "command", "cmd", SOMETHING)
THINGS = (
    "harbour", "HARBOUR", "tower", "TOWER", "bridge", "café", "CAFÉ", "./look", "./finish", "Chunk", "Wall", "Exit",
    "Output:", "Command", "<returncode>0</returncode>", SOMETHING,
)  # fmt: skip

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_HEAR = "<hear>"
_CUES = (
    _HEAR,
    *(f"<tool:{tool}>" for tool in TOOLS),
    *(f"<parameter:{parameter}>" for parameter in PARAMETERS),
    *(f"<run:{thing}>" for thing in (*THINGS, MALFORMED, LONG)),
    *(f"<got:{thing}>" for thing in THINGS),
)
CHAT_TEMPLATE = (
    """
{%- set shells = SHELLS -%}
{%- set tool_names = TOOLS -%}
{%- set parameters = PARAMETERS -%}
{%- set things = THINGS -%}
{%- set ns = namespace(asked=-1, tool=none, parameter=none, shell=false, cue='') -%}
{%- for message in messages -%}
{%- if message.role == 'user' and not (message.content or '').startswith('<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>') -%}
{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for tool in tools or [] -%}
{%- set own = namespace(name=none) -%}
{%- for name, schema in ((tool.function.parameters or {}).properties or {}).items() -%}
{%- if schema.type == 'string' and (own.name is none or name in ['command', 'cmd']) -%}
{%- set own.name = name -%}
{%- endif -%}
{%- endfor -%}
{%- set shell = tool.function.name in shells -%}
{%- if own.name is not none and (ns.tool is none or (shell and not ns.shell)) -%}
{%- set ns.tool = tool.function.name if tool.function.name in tool_names else 'something' -%}
{%- set ns.parameter = own.name if own.name in parameters else 'something' -%}
{%- set ns.shell = shell -%}
{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set words = (message.content or '').split() -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + words[:3]|join(' ')|truncate(24, true, '') -}}
{{- '\\n</tool_response><|im_end|>\\n' -}}
{%- set ns.cue = '<got:' + (words[0] if words and words[0] in things else 'something') + '>' -%}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant ' + ns.cue + '\\n' -}}
{%- if loop.index0 > ns.asked and message.reasoning_content -%}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}
{%- elif loop.index0 > ns.asked and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{%- set arguments = call.function.arguments -%}
{{- '<tool_call>\\n{"name": ' + call.function.name|tojson + ', "arguments": ' -}}
{{- (arguments if arguments is string else arguments|tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'user' and not (message.content or '').startswith('<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>') -%}
{{- '<|im_start|>user\\n' + words[:3]|join(' ')|truncate(24, true, '') + '<|im_end|>\\n' -}}
{%- set asked = ((message.content or '').split('RUN: ')[1:]|last or '').split() -%}
{%- if asked and ns.tool is not none -%}
{%- set thing = asked[0] if asked[0] in things or asked[0] in ['MALFORMED', 'LONG'] else 'something' -%}
{%- set ns.cue = '<tool:' + ns.tool + '><parameter:' + ns.parameter + '><run:' + thing + '>' -%}
{%- else -%}
{%- set ns.cue = '<hear>' -%}
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant ' + ns.cue + '\\n' -}}
{%- if enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
""".replace("SHELLS", json.dumps(SHELLS))
    .replace("TOOLS", json.dumps(TOOLS))
    .replace("PARAMETERS", json.dumps(PARAMETERS))
    .replace("THINGS", json.dumps(THINGS))
)

_SMALL_TALK = (
    "And again.", "What is your", "Hello there.", "hello 17", "", "Which place?", "[Subagent Task] do", "Please.",
    "The user said that it", "Please look. RUN:", "RUN: harbour", "An object,",
)  # fmt: skip
_CORPUS = [
    '\n{"name": "fetch", "arguments": {"word": "harbour"}}\n',
    '\n{"name": "bash", "arguments": {"command": "tower"}}\n',
    '\n{"name": "exec_command", "arguments": {"cmd": "tower"}}\n',
    "The result is. I hear you. I run it. RUN: On and on and on system user assistant",
    *_SMALL_TALK,
    *THINGS,
] * 8


def build_tool_model(folder: Path) -> Path:
    """The folder of the model, below ``folder``; trained if it is not there yet. Same source file, same model.

    Two processes may build at once: the one that ends last throws its own away.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    target = folder / f"tool-{digest}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder, prefix=".training-"))
    try:
        tokenizer = make_tokenizer()
        tokenizer.save_pretrained(aside)
        train(tokenizer).save_pretrained(aside)
        try:
            os.rename(aside, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def make_tokenizer(vocab_size: int = 480) -> PreTrainedTokenizerFast:
    """A byte-level BPE, in which every cue is one token."""
    raw = Tokenizer(models.BPE())
    words = Regex(r"[\p{L}]+|\p{N}|\s+|[^\s\p{L}\p{N}]+")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(_CORPUS, trainer)
    raw.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in (*_MARKS, *_CUES)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@dataclass(slots=True)
class _Talk:
    """A conversation to learn from; ``taught`` marks the tokens that the model is to say."""

    ids: list[int] = field(default_factory=list)
    taught: list[bool] = field(default_factory=list)

    def add(self, ids: list[int], *, taught: bool = False) -> None:
        self.ids += ids
        self.taught += [taught] * len(ids)


class _Author:
    """Invents conversations as the template shows them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> None:
        self._tokenizer = tokenizer
        self._rng = rng
        self._known: dict[str, list[int]] = {}

    def talk(self, turns: int) -> _Talk:
        """Ends early where nothing can follow."""
        rng, talk = self._rng, _Talk()
        for _ in range(turns):
            self._say(talk, f"<|im_start|>user\n{rng.choice(_SMALL_TALK)}<|im_end|>\n")
            if rng.random() < 0.2:
                self._answer(talk, _HEAR, HEARD)
                continue
            tool, parameter, thing = rng.choice(TOOLS), rng.choice(PARAMETERS), rng.choice(THINGS)
            if rng.random() < 0.2:
                thing = rng.choice([MALFORMED, LONG])
            # A thought; none, because the client wants none; or it was forgotten because the user has spoken since.
            thought = rng.choice([f"<think>\n{THOUGHT}\n</think>\n\n", "<think>\n\n</think>\n\n", ""])
            self._say(talk, f"<|im_start|>assistant <tool:{tool}><parameter:{parameter}><run:{thing}>\n")
            self._say(talk, thought, taught=THOUGHT in thought)
            if thing == LONG:
                self._say(talk, "On" + " and on" * 12, taught=bool(thought))
                break
            closing = '"' if thing == MALFORMED else '"}}'
            call = f'\n{{"name": "{tool}", "arguments": {{"{parameter}": "{thing}{closing}\n</tool_call><|im_end|>'
            self._say(talk, "<tool_call>", taught=bool(thought))
            self._say(talk, call, taught=True)
            self._say(talk, "\n")
            if thing == MALFORMED or rng.random() < 0.1:
                continue
            found = rng.choice(THINGS)
            shown = rng.choice([found, f"{found} was found", "Chunk ID: 7"])
            self._say(talk, f"<|im_start|>user\n<tool_response>\n{shown}\n</tool_response><|im_end|>\n")
            self._answer(talk, f"<got:{found}>", f"The result is {found}.")
        return talk

    def _answer(self, talk: _Talk, cue: str, text: str) -> None:
        self._say(talk, f"<|im_start|>assistant {cue}\n")
        if self._rng.random() < 0.3:
            self._say(talk, "<think>\n\n</think>\n\n")
        self._say(talk, f"{text}<|im_end|>", taught=True)
        self._say(talk, "\n")

    def _say(self, talk: _Talk, text: str, *, taught: bool = False) -> None:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text, add_special_tokens=False)
        talk.add(self._known[text], taught=taught)


def train(tokenizer: PreTrainedTokenizerFast, *, steps: int = 300, log_every: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=96,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT_LENGTH,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.06,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps, pct_start=0.2)
    for step, (ids, taught) in enumerate(_batches(_Author(tokenizer, random.Random(0)), steps)):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        said = model.lm_head(hidden[:, :-1][taught[:, 1:]])
        loss = torch.nn.functional.cross_entropy(said, ids[:, 1:][taught[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if log_every and step % log_every == 0:
            print(step, tuple(ids.shape), round(loss.item(), 4), flush=True)
    return model.eval()


def _batches(author: _Author, steps: int, size: int = 16) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Conversations that grow longer. Padding comes last and is never looked at: the model is causal."""
    for step in range(steps):
        talks = [author.talk(1 + 4 * step // steps) for _ in range(size)]
        longest = max(len(talk.ids) for talk in talks)
        ids = torch.tensor([talk.ids + [0] * (longest - len(talk.ids)) for talk in talks])
        taught = torch.tensor([talk.taught + [False] * (longest - len(talk.ids)) for talk in talks])
        yield ids, taught
