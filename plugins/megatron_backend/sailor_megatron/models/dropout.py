"""Dropout whose mask depends on the sample and the place in the model, and on nothing else.

So the mask is the same whatever the plan: microbatches, stages, tensor parallelism, and whether
an activation is computed a second time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from sailor_megatron.models.tensor_parallel import TensorParallel


class Dropout:
    """Drops entries of activations [samples, positions, hidden], or of a rank's own positions."""

    def __init__(self, probability: float, seed: int, tp: TensorParallel | None = None) -> None:
        self.probability = probability
        self._seed = seed
        self._tp = tp

    def __call__(self, x: Tensor, site: str, samples: Sequence[int]) -> Tensor:
        """Return x with dropped entries set to 0 and the others scaled up."""
        if not self.probability:
            return x
        if self._tp is None or not self._tp.split:
            masks = [self.mask(site, sample, x.shape[1:], x.device) for sample in samples]
            return x * self._scaled(torch.stack(masks), x.dtype)
        shape = (self._tp.positions, x.shape[-1])
        masks = [self.mask(site, sample, shape, x.device) for sample in samples]
        return x * self._tp.own(self._scaled(torch.stack(masks, dim=1), x.dtype))

    def of_heads(self, x: Tensor, site: str, samples: Sequence[int], first_head: int) -> Tensor:
        """Drop entries of attention's probabilities [samples, heads, positions, positions]."""
        if not self.probability:
            return x
        heads = range(first_head, first_head + x.shape[1])
        masks = [
            torch.stack([self.mask(f"{site}.{head}", s, x.shape[2:], x.device) for head in heads])
            for s in samples
        ]
        return x * self._scaled(torch.stack(masks), x.dtype)

    def _scaled(self, masks: Tensor, dtype: torch.dtype) -> Tensor:
        return masks.to(dtype) / (1.0 - self.probability)

    def mask(self, site: str, sample: int, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return which entries of one sample stay, as booleans."""
        text = f"{self._seed}:{site}:{sample}".encode()
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
        generator = torch.Generator(device=device).manual_seed(seed)
        drawn = torch.rand(tuple(shape), generator=generator, device=device)
        return drawn >= self.probability
