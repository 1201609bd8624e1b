"""All parameters of a rank in one flat buffer, with their gradients beside it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sailor.model.arch import ModelSpec
from sailor_megatron.layout import PlanLayout, Shard, TensorSpec
from sailor_megatron.options import RunOptions
from sailor_megatron.sync_groups import SyncGroup

INIT_STD = (
    0.02  # of weights; those that end a residual branch get 0.02 / sqrt(2 * blocks), as GPT-2
)

VECTOR_ELEMENTS = 64  # no processor's vectors are longer

COMPUTE_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Parameters:
    """The shards of one rank.

    `master` holds them in fp32 (fp64 in an fp64 run), `grad` their summed gradients in the same
    order, `compute` what the layers multiply with: `master` itself, or its 16-bit copy. Shards of
    one sync group lie side by side, so that most groups are summed without a copy.
    """

    def __init__(
        self,
        layout: PlanLayout,
        groups: Sequence[SyncGroup],
        rank: int,
        options: RunOptions,
        device: torch.device,
    ) -> None:
        self.layout = layout
        self.shards = {shard.name: shard for shard in _in_flat_order(layout, groups, rank)}
        self.dtype = COMPUTE_DTYPES[options.precision]
        self.master_dtype = torch.float64 if self.dtype is torch.float64 else torch.float32
        self._start: dict[str, int] = {}
        total = 0
        for name in self.shards:
            self._start[name] = total
            total += math.prod(self.local_shape(name))
        # Whole vectors only: the optimizer's kernel rounds the rest, which it does one by one, in
        # another way, and where the rest lies differs between ranks that hold the same tensor.
        total = -(-total // VECTOR_ELEMENTS) * VECTOR_ELEMENTS
        self.master = torch.zeros(total, dtype=self.master_dtype, device=device)
        self.grad = torch.zeros_like(self.master)
        same = self.dtype is self.master_dtype
        self.compute = self.master if same else torch.zeros_like(self.master, dtype=self.dtype)
        self._leaves: dict[tuple[str, ...], Tensor] = {}

    def local_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a shard."""
        tensor, shard = self.layout.tensors[name], self.shards[name]
        if tensor.dim is None:
            return tensor.shape
        sizes = list(tensor.shape)
        sizes[tensor.dim] = shard.hi - shard.lo
        return tuple(sizes)

    def view(self, buffer: Tensor, name: str) -> Tensor:
        """Return the part of a flat buffer that belongs to a shard, in its shape."""
        shape = self.local_shape(name)
        start = self._start[name]
        return buffer[start : start + math.prod(shape)].view(shape)

    def piece(self, buffer: Tensor, atom: Shard) -> Tensor:
        """Return the part of a flat buffer that belongs to a piece of a shard."""
        dim = self.layout.tensors[atom.name].dim or 0
        start = atom.lo - self.shards[atom.name].lo
        return self.view(buffer, atom.name).narrow(dim, start, atom.hi - atom.lo)

    def leaf(self, *names: str) -> Tensor:
        """Return consecutive shards, stacked along dimension 0, as one trainable tensor."""
        if names in self._leaves:
            return self._leaves[names]
        shapes = [self.local_shape(name) for name in names]
        start = stop = self._start[names[0]]
        for name, shape in zip(names, shapes, strict=True):
            if self._start[name] != stop:
                raise RuntimeError(f"{name} does not lie behind {names[0]}")
            stop += math.prod(shape)
        stacked = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        leaf = self.compute[start:stop].view(stacked).detach().requires_grad_()
        grad = self.grad[start:stop].view(stacked)
        if self.compute is self.master:
            leaf.grad = grad  # autograd adds to it in place
        else:
            register: Callable[..., object] = leaf.register_post_accumulate_grad_hook
            register(_adding_to(grad))
        self._leaves[names] = leaf
        return leaf

    def refresh_compute(self) -> None:
        """Copy the master parameters to what the layers multiply with."""
        if self.compute is not self.master:
            self.compute.copy_(self.master)

    def initialise(self, seed: int) -> None:
        """Set every shard from a generator of its tensor's own: the same whatever the plan."""
        for name, shard in self.shards.items():
            tensor = self.layout.tensors[name]
            full = initial_tensor(self.layout.spec, tensor, seed)
            dim = tensor.dim or 0
            self.view(self.master, name).copy_(full.narrow(dim, shard.lo, shard.hi - shard.lo))
        self.refresh_compute()


def initial_tensor(spec: ModelSpec, tensor: TensorSpec, seed: int) -> Tensor:
    """Return the whole first value of a tensor, in fp32."""
    if tensor.name.endswith(".bias"):
        return torch.zeros(tensor.shape)
    if len(tensor.shape) == 1:
        return torch.ones(tensor.shape)
    ends_branch = tensor.name.endswith(("output.weight", "down.weight"))
    std = INIT_STD / math.sqrt(2 * spec.num_layers) if ends_branch else INIT_STD
    digest = hashlib.sha256(f"{seed}:{tensor.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.empty(tensor.shape).normal_(std=std, generator=generator)


def _adding_to(grad: Tensor) -> Callable[[Tensor], None]:
    def add(leaf: Tensor) -> None:
        if leaf.grad is not None:
            grad.add_(leaf.grad)
            leaf.grad = None

    return add


def _in_flat_order(layout: PlanLayout, groups: Sequence[SyncGroup], rank: int) -> Sequence[Shard]:
    """Return a rank's shards by the first sync group that they (or `beside`) have a piece in."""
    first: dict[str, int] = {}
    for index, group in enumerate(groups):
        if rank in group.ranks:
            for atom in group.atoms:
                first.setdefault(atom.name, index)
    held = layout.shards(rank)
    lead = {shard.name: layout.tensors[shard.name].beside or shard.name for shard in held}
    return sorted(held, key=lambda shard: first[lead[shard.name]])
