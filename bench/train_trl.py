"""TRL's GRPO trainer as a contestant: its own loop, loss, clipping and optimizer, on samples that it did not generate.

One thing is replaced: where it would generate completions and score them, it is handed the batch, padded the way it
pads (prompts on the left, completions on the right). Micro-batches are equally many samples, as it cuts them, and as
many as the budget has room for. Runs in an interpreter that has trl; clawrl is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.train_side import Channel, Clock, Job
from bench.train_work import Piece

_FOREVER = 10**9


def samples_at_once(pieces: Sequence[Piece], tokens: int) -> int:
    width = _prompt_width(pieces) + _response_width(pieces)
    return max(n for n in range(1, len(pieces) + 1) if len(pieces) % n == 0 and (n == 1 or n * width <= tokens))


class GivenSamples(GRPOTrainer):  # type: ignore[misc]
    def __init__(self, channel: Channel, **settings: Any) -> None:
        super().__init__(**settings)
        self.channel = channel
        self.pieces = channel.job.samples
        self.clock = Clock()
        self.loss = self.norm = 0.0

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        self.clock, self.loss = Clock(), 0.0
        count = len(self.pieces)
        prompt_ids = torch.full((count, _prompt_width(self.pieces)), self._tokenizer.pad_token_id)
        completion_ids = torch.full((count, _response_width(self.pieces)), self._tokenizer.pad_token_id)
        prompt_mask, completion_mask = torch.zeros_like(prompt_ids), torch.zeros_like(completion_ids)
        for b, piece in enumerate(self.pieces):
            prompt_ids[b, -len(piece.prompt) :] = torch.tensor(piece.prompt)
            prompt_mask[b, -len(piece.prompt) :] = 1
            completion_ids[b, : len(piece.response)] = torch.tensor(piece.response)
            completion_mask[b, : len(piece.response)] = 1
        return {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor([piece.advantage for piece in self.pieces]),
            "num_items_in_batch": completion_mask.sum(),
        }

    def compute_loss(self, *arguments: Any, **settings: Any) -> Any:
        loss = super().compute_loss(*arguments, **settings)
        self.loss += loss.item()
        return loss

    def _clip_grad_norm(self, model: Any) -> Any:
        self.clock.pause()
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        self.channel.keep_first("gradients", gradients)
        self.clock.resume()
        norm = super()._clip_grad_norm(model)
        self.norm = float(norm)
        return norm


class Steps(TrainerCallback):  # type: ignore[misc]
    """Tells of each step and waits for the word to take the next."""

    trainer: GivenSamples

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        trainer = self.trainer
        trainer.clock.pause()
        trainer.channel.keep_first("weights", dict(trainer.model.named_parameters()))
        pieces = trainer.pieces
        trainer.channel.stepped(
            clock=trainer.clock,
            loss=trainer.loss,
            grad_norm=trainer.norm,
            passed_tokens=len(pieces) * (_prompt_width(pieces) + _response_width(pieces)),
        )
        control.should_training_stop = not trainer.channel.told_to_step()


def _prompt_width(pieces: Sequence[Piece]) -> int:
    return max(len(piece.prompt) for piece in pieces)


def _response_width(pieces: Sequence[Piece]) -> int:
    return max(len(piece.response) for piece in pieces)


def _config(job: Job, folder: str) -> GRPOConfig:
    pieces = job.samples
    rows = samples_at_once(pieces, job.tokens)
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=len(pieces) // rows,
        steps_per_generation=len(pieces) // rows,
        num_generations=len(pieces),
        max_completion_length=_response_width(pieces),
        max_steps=_FOREVER,
        # The loss of every sample weighs the same, as in the other contestants.
        loss_type="grpo",
        beta=0.0,
        temperature=1.0,
        epsilon=job.clip_low,
        epsilon_high=job.clip_high,
        learning_rate=job.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=job.betas[0],
        adam_beta2=job.betas[1],
        adam_epsilon=job.eps,
        weight_decay=0.0,
        max_grad_norm=job.max_grad_norm,
        bf16=job.dtype == "bfloat16",
        gradient_checkpointing=False,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    channel = Channel()
    job = channel.job
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32, local_files_only=True)
    steps = Steps()
    # Beside the samples, with which it goes: this process is ended without a word.
    folder = str(Path(job.pieces).parent / "trl")
    trainer = GivenSamples(
        channel,
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=_config(job, folder),
        train_dataset=Dataset.from_dict({"prompt": ["never read"] * len(job.samples)}),
        processing_class=AutoTokenizer.from_pretrained(job.model, local_files_only=True),
        callbacks=[steps],
    )
    steps.trainer = trainer
    channel.ready()
    if channel.told_to_step():
        trainer.train()


if __name__ == "__main__":
    main()
