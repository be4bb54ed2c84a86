"""From a micro-batch to what the model expects at each of its trainable tokens.

`PolicyReader` runs the whole forest of a micro-batch in one pass and reads log-probs off the hidden states, where the
model allows it. Whether it does is found out at start, by comparing with the model's own way on two short sequences: a
model whose layers mix tokens otherwise, or that does more to its logits than a linear map, is read the plain way
(one sample per pass, logits by the model itself), which is slower and takes more memory.

Every method is a collective for a sharded model: all ranks call it in the same order.
"""

import logging

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel

from clawrl.loss import HeadRows, LogitRows, Rows, TokenDistribution, VocabularyHead
from clawrl.training import attention
from clawrl.training.batch import MicroBatch, Split
from clawrl.training.fused_head import LigerRows, check_liger
from clawrl.training.model import reshard
from clawrl.training.shards import DataParallel, local
from clawrl.training.tree import MIN_SHARED, Forest, plant

log = logging.getLogger(__name__)
# What models do with arguments and masks that they do not expect.
_DOES_NOT_FIT = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, NotImplementedError)


class PolicyReader:
    def __init__(
        self, model: PreTrainedModel, *, block_bytes: int = 256 * 2**20, share: bool = True, liger: bool = False
    ) -> None:
        if liger:
            check_liger()
        self._liger = liger
        self._model = model
        self._block_bytes = block_bytes
        self._share = share
        self._device = next(model.parameters()).device
        self.plain = not self._packs()
        if self.plain:
            log.warning(
                "%s is trained one sample per pass: its attention or its logits are of a kind that cannot be packed",
                type(model).__name__,
            )

    def release(self) -> None:
        """Frees what FSDP has gathered of a model of which no backward pass will follow."""
        reshard(self._model)

    def split(self, micro_batch_tokens: int, parallel: DataParallel) -> Split:
        """How batches for this model are to be cut."""
        return Split(
            tokens=1 if self.plain else micro_batch_tokens,
            share=self._share and not self.plain,
            ranks=parallel.size,
            rank=parallel.rank,
            # A layer does about 24 D^2 operations for a token and 4 D for one token's attention to another.
            pair_cost=1 / (6 * self._model.config.get_text_config().hidden_size),
        )

    def read(self, batch: MicroBatch) -> TokenDistribution:
        """What the model expects at each unmasked token of ``batch``, at each sample's own temperature."""
        temperature_N = batch.temperature_N
        rows: Rows
        if self.plain:
            rows = LogitRows(self._plain_logits(batch.forest, batch.predictor_N), temperature_N)
        else:
            hidden_1ND, logits = self._run(batch.forest, 1)
            # FSDP prepares the backward pass where a gradient reaches what the model returned.
            hidden_ND = hidden_1ND[0, batch.predictor_N] + 0.0 * logits.sum()
            rows = self._rows(hidden_ND, self._head(), temperature_N)
        return TokenDistribution(rows, batch.mask_BT)

    def _rows(self, hidden_ND: Tensor, head: VocabularyHead, temperature_N: Tensor) -> Rows:
        if head.group is None and not self._liger and 2 * len(hidden_ND) <= head.rows_at_once:
            # So few that nothing is saved by computing them twice.
            logits_NV = torch.nn.functional.linear(hidden_ND, head.weight_VD, head.bias_V)
            return LogitRows(logits_NV, temperature_N)
        return (LigerRows if self._liger else HeadRows)(hidden_ND, head, temperature_N)

    def _run(
        self, forest: Forest, logits_to_keep: int, tree: attention.AttentionTree | None = None
    ) -> tuple[Tensor, Tensor]:
        """One pass over the forest -> the last hidden states [1, N, D] and the last ``logits_to_keep`` logits."""
        if self._model.base_model is self._model:
            raise TypeError(f"{type(self._model).__name__} has no body apart from its head")
        seen: list[Tensor] = []
        hook = self._model.base_model.register_forward_hook(lambda _, __, output: seen.append(output[0]))
        try:
            logits = self._model(
                input_ids=self._row(forest.ids_N),
                position_ids=self._row(forest.positions_N),
                # A mask of four dimensions is handed on as it is, and none is made in its place.
                attention_mask=torch.empty(1, 1, 0, 0, device=self._device),
                use_cache=False,
                logits_to_keep=logits_to_keep,
                tree=tree or attention.AttentionTree(forest.nodes, self._device),
            ).logits
        finally:
            hook.remove()
        return seen[0], logits

    def _plain_logits(self, forest: Forest, predictor_N: Tensor | int) -> Tensor:
        """[N, V] of the one sequence of ``forest``, by the model itself."""
        logits: Tensor = self._model(
            input_ids=self._row(forest.ids_N), use_cache=False, logits_to_keep=predictor_N
        ).logits[0]
        return logits

    def _head(self) -> VocabularyHead:
        """The vocabulary projection as it is right after a pass: gathered by FSDP, cut by tensor parallelism."""
        module = self._model.get_output_embeddings()
        if not isinstance(module, torch.nn.Linear):
            raise TypeError(f"the head is a {type(module).__name__}")
        weight, group, first = module.weight, None, 0
        if isinstance(weight, DTensor):
            (placement,), mesh = weight.placements, weight.device_mesh
            if placement != Shard(0):
                raise TypeError(f"a vocabulary projection that is cut by {placement}")
            group = mesh.get_group()
            first = min(len(weight), mesh.get_local_rank() * -(-len(weight) // mesh.size()))
            weight = weight.to_local()
        return VocabularyHead(
            weight_VD=weight,
            bias_V=None if module.bias is None else local(module.bias),
            group=group,
            first=first,
            block_bytes=self._block_bytes,
        )

    @torch.no_grad()
    def _packs(self) -> bool:
        """Whether a pass over a forest gives what the model gives for each sequence; the same answer on every rank."""
        before = self._model.config._attn_implementation
        try:
            fits = self._agrees()
        except _DOES_NOT_FIT as error:
            log.info("packing is not possible: %s", error)
            fits = False
        if dist.is_initialized() and dist.get_world_size() > 1:
            verdict = torch.tensor(int(fits), device=self._device)
            dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
            fits = bool(verdict)
        if not fits:
            self._model.set_attn_implementation(before)
        # Whoever looks at the model's parameters next shall find the shards.
        reshard(self._model)
        return fits

    def _agrees(self) -> bool:
        words = np.random.default_rng(0).integers(0, self._model.config.get_text_config().vocab_size, MIN_SHARED + 8)
        sequences = [words[: MIN_SHARED + 3], np.concatenate([words[:MIN_SHARED], words[MIN_SHARED + 3 :]])]
        forest = plant(sequences)
        # By the model's own attention, before it is given ours.
        alone = [self._plain_logits(plant([sequence]), 0) for sequence in sequences]
        self._model.set_attn_implementation(attention.NAME)
        tree = attention.AttentionTree(forest.nodes, self._device)
        hidden_1ND, logits_1NV = self._run(forest, len(forest.ids_N), tree)
        if _looks_through_windows(self._model) and not tree.windowed:
            return False
        head = self._head()
        mine_NV = torch.nn.functional.linear(hidden_1ND[0], head.weight_VD, head.bias_V)
        theirs_NV = logits_1NV[0, :, head.first : head.first + len(head.weight_VD)]
        packed = [logits_1NV[0, torch.from_numpy(place)] for place in forest.places]
        # Sixteen bits round differently in passes of another length; another way of attending is far off.
        tolerance = 1e-3 if logits_1NV.dtype == torch.float32 else 0.05
        return _distance(mine_NV, theirs_NV) < 1e-3 and _distance(torch.cat(packed), torch.cat(alone)) < tolerance

    def _row(self, values_N: np.ndarray) -> Tensor:
        return torch.from_numpy(values_N).to(self._device)[None]


def _looks_through_windows(model: PreTrainedModel) -> bool:
    """Whether the configuration has layers that see only what is near them; two short sequences would not show it."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return any(kind != "full_attention" for kind in kinds)
    return any(getattr(config, name, None) is not None for name in ("sliding_window", "attention_chunk_size"))


def _distance(a: Tensor, b: Tensor) -> float:
    """The mean difference, relative to the mean size."""
    return float((a.float() - b.float()).abs().mean() / b.float().abs().mean().clamp(min=1e-9))
