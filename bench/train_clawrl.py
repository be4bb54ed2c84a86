"""clawrl's own trainer as a contestant: the binary method's PPO loss, one update for each batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bench.train_side import Channel, Clock, Job
from bench.train_work import Piece
from clawrl.messages import Sample, TurnId, VersionSpan
from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig
from clawrl.training.config import TrainingConfig
from clawrl.training.model import load_model
from clawrl.training.policy_trainer import PolicyTrainer

_UNLIKELY = -50.0
"""Behaviour log-probs so low that the importance weight is at its cap of 1: a loss that others have as well."""


def sample_of(piece: Piece, number: int) -> Sample:
    count = len(piece.response)
    return Sample(
        turn_id=TurnId(f"turn-{number}"),
        prompt_ids=np.array(piece.prompt, dtype=np.int32),
        response_ids=np.array(piece.response, dtype=np.int32),
        behaviour_logps=np.full(count, _UNLIKELY, dtype=np.float32),
        mask=np.ones(count, dtype=np.bool_),
        spans=(VersionSpan(start=0, end=count, version=1),),
        temperature=1.0,
        reward=piece.advantage,
        rl_mask=True,
    )


def make_trainer(job: Job) -> PolicyTrainer:
    config = TrainingConfig(
        dtype=job.dtype,  # type: ignore[arg-type]
        micro_batch_tokens=job.tokens,
        learning_rate=job.learning_rate,
        betas=job.betas,
        adam_eps=job.eps,
        max_grad_norm=job.max_grad_norm,
    )
    method = BinaryRL(BinaryRLConfig(baseline="none", tis_clip=1.0, eps_clip=job.clip_low, eps_clip_high=job.clip_high))
    model = load_model(Path(job.model), dtype=getattr(torch, job.dtype))
    return PolicyTrainer(model, None, method, config)


def main() -> None:
    channel = Channel()
    samples = [sample_of(piece, number) for number, piece in enumerate(channel.job.samples)]
    trainer = make_trainer(channel.job)
    masters = trainer.optimizer.masters
    channel.ready()
    while channel.told_to_step():
        clock = Clock()
        plan = trainer.compute(samples)
        clock.pause()
        channel.keep_first("gradients", {name: m.grad for name, m in masters.items() if m.grad is not None})
        clock.resume()
        trainer.apply()
        clock.pause()
        channel.keep_first("weights", masters)
        channel.stepped(
            clock=clock,
            loss=plan.metrics["loss"],
            grad_norm=plan.metrics["grad_norm"],
            passed_tokens=int(plan.metrics["forward_tokens"]),
        )


if __name__ == "__main__":
    main()
