"""A random two-layer chat model with a real byte-level BPE tokenizer, saved as a plain folder.

Every test that needs "a model" uses this one: it loads in milliseconds, answers nonsense, and obeys
every rule that a real model obeys (special tokens, chat template, tied embeddings).
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "Reply: that is good, thanks. Verdict: good",
    "Reply: that is bad, do it again. Verdict: bad",
    "User: tell me about plants. Assistant: plants are green and they grow in the rain.",
    "a short plain sentence, please; not a list. good bad good bad good bad",
    "naïve café and one “quoted” word, 多语言 text and an emoji 🙂",
] * 8


_KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    # The one with biases.
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def build_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    tie_embeddings: bool = True,
    vocab_size: int = 400,
    hidden_size: int = 64,
    kind: str = "llama",
) -> Path:
    """Write a random tiny model and its tokenizer into ``folder`` and return it. Same seed, same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(vocab_size)
    tokenizer.save_pretrained(folder)
    make_config, make_model = _KINDS[kind]
    config = make_config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        max_position_embeddings=1024,
        tie_word_embeddings=tie_embeddings,
        bos_token_id=tokenizer.convert_tokens_to_ids("<|im_start|>"),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,
    )
    torch.manual_seed(seed)
    make_model(config).save_pretrained(folder)
    return folder


def train_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|im_end|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
