"""The plain loop: a transformers model, a padded batch, log_softmax over all logits, PPO's loss, AdamW. Nothing else.

In bfloat16 the weights stay float32 and the passes are autocast, as such loops are usually written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from bench.train_side import Channel, Clock, Job
from bench.train_work import Piece


def micro_batches(pieces: Sequence[Piece], tokens: int) -> Iterator[list[Piece]]:
    """In the order they come; as many rows of the longest one's length as the budget has room for."""
    rows: list[Piece] = []
    for piece in pieces:
        longest = max(one.length for one in [*rows, piece])
        if rows and longest * (len(rows) + 1) > tokens:
            yield rows
            rows = []
        rows.append(piece)
    yield rows


class PlainLoop:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.pieces = job.samples
        self.model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32, local_files_only=True)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=job.learning_rate,
            betas=job.betas,
            eps=job.eps,
            weight_decay=0.0,
            fused=True,
        )

    def gradients(self) -> tuple[float, int]:
        """Forward and backward over the batch -> its loss and the tokens that went through the model."""
        total, passed = 0.0, 0
        for rows in micro_batches(self.pieces, self.job.tokens):
            loss = self._loss(rows) / len(self.pieces)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            passed += len(rows) * max(row.length for row in rows)
        return total, passed

    def update(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def _loss(self, rows: Sequence[Piece]) -> Tensor:
        longest = max(row.length for row in rows)
        ids_BT = torch.zeros(len(rows), longest, dtype=torch.long)
        present_BT, trains_BT = torch.zeros_like(ids_BT), torch.zeros(ids_BT.shape)
        for b, row in enumerate(rows):
            ids_BT[b, : row.length] = torch.tensor(row.prompt + row.response)
            present_BT[b, : row.length] = 1
            trains_BT[b, len(row.prompt) : row.length] = 1.0
        with torch.autocast("cpu", torch.bfloat16, enabled=self.job.dtype == "bfloat16"):
            logits_BTV = self.model(input_ids=ids_BT, attention_mask=present_BT, use_cache=False).logits
        logps_BTV = torch.log_softmax(logits_BTV[:, :-1].float(), dim=-1)
        logp_BT = logps_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
        advantage_B1 = torch.tensor([[row.advantage] for row in rows])
        ratio_BT = torch.exp(logp_BT - logp_BT.detach())
        limited_BT = ratio_BT.clamp(1 - self.job.clip_low, 1 + self.job.clip_high)
        loss_BT = -torch.minimum(ratio_BT * advantage_B1, limited_BT * advantage_B1)
        mask_BT = trains_BT[:, 1:]
        return ((loss_BT * mask_BT).sum(-1) / mask_BT.sum(-1)).sum()


def main() -> None:
    channel = Channel()
    loop = PlainLoop(channel.job)
    channel.ready()
    while channel.told_to_step():
        clock = Clock()
        loss, passed = loop.gradients()
        clock.pause()
        channel.keep_first("gradients", {name: p.grad for name, p in loop.model.named_parameters()})
        clock.resume()
        norm = loop.update()
        clock.pause()
        channel.keep_first("weights", dict(loop.model.named_parameters()))
        channel.stepped(clock=clock, loss=loss, grad_norm=norm, passed_tokens=passed)


if __name__ == "__main__":
    main()
