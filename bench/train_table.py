"""Memory and operations of a training step that this machine cannot take, by arithmetic: `clawrl.sizing.training`.

    python -m bench.train_table [--model Qwen/Qwen3-4B] [--tp 4] [--contexts 8192 32768]

One sample of each length a pass, every token predicted, bfloat16: nothing that fits that length takes more.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from clawrl.models import ModelConfig
from clawrl.sizing.architecture import Architecture
from clawrl.sizing.lookup import find_architecture
from clawrl.sizing.training import TrainingBytes, TrainingSetting, training_bytes, training_flops

MODEL, TP, CONTEXTS = "Qwen/Qwen3-4B", 4, (8192, 32768)
_GIB = 2**30
_PARTS: dict[str, Callable[[TrainingBytes], float]] = {
    "weights, bf16": lambda found: found.weights,
    "gradients of the pass, bf16": lambda found: found.gradients,
    "gradients of the batch, float32": lambda found: found.sums,
    "master weights, float32": lambda found: found.masters,
    "Adam's moments, float32": lambda found: found.moments,
    "activations": lambda found: found.activations,
    "logits, in blocks": lambda found: found.logits,
    "**together**": lambda found: found.on_gpu,
    "**together with `offload_optimizer`**": lambda found: found.on_gpu - found.sums - found.masters - found.moments,
    "(logits, if whole on every GPU)": lambda found: found.whole_logits,
}


def table(model: str = MODEL, tp_size: int = TP, contexts: Sequence[int] = CONTEXTS) -> str:
    shape = find_architecture(ModelConfig(source=model))
    columns = list(product(contexts, (False, True)))
    settings = [
        TrainingSetting(lengths=(context,), predicted=context, tp_size=tp_size, activation_checkpointing=checkpointing)
        for context, checkpointing in columns
    ]
    titles = [f"{context} tokens{', `activation_checkpointing`' * again}" for context, again in columns]
    lines = [f"| {model}, GiB on each of {tp_size} GPUs | {' | '.join(titles)} |", "|---" * (len(columns) + 1) + "|"]
    found = [training_bytes(shape, setting) for setting in settings]
    lines += [_line(name, [f"{part(one) / _GIB:.1f}" for one in found]) for name, part in _PARTS.items()]
    with_entropy = [training_bytes(shape, replace(setting, entropy=True)).logits for setting in settings]
    lines.append(_line("(logits, in blocks, with `entropy_coef`)", [f"{one / _GIB:.1f}" for one in with_entropy]))
    lines.append(_line("TFLOP for the sample, all GPUs", [f"{_flops(shape, one) / 1e12:.0f}" for one in settings]))
    return "\n".join(lines)


def _flops(shape: Architecture, setting: TrainingSetting) -> float:
    return training_flops(
        shape,
        setting.lengths,
        setting.predicted,
        activation_checkpointing=setting.activation_checkpointing,
        logits_again=True,
    ).total


def _line(name: str, values: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(values)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, help="a folder, or the hub id of a known model")
    parser.add_argument("--tp", type=int, default=TP)
    parser.add_argument("--contexts", nargs="+", type=int, default=list(CONTEXTS))
    asked = parser.parse_args()
    print(table(asked.model, asked.tp, asked.contexts))


if __name__ == "__main__":
    main()
