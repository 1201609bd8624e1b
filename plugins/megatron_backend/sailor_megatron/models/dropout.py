"""Dropout whose mask depends on the sample and the place in the model, and on nothing else.

So the mask is the same whatever the plan: microbatches, stages, tensor parallelism, and whether
an activation is computed a second time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


class Dropout:
    """Drops entries of [samples, positions, hidden] activations that every tp rank holds."""

    def __init__(self, probability: float, seed: int) -> None:
        self.probability = probability
        self._seed = seed

    def __call__(self, x: Tensor, site: str, samples: Sequence[int]) -> Tensor:
        """Return x with dropped entries set to 0 and the others scaled up."""
        if not self.probability:
            return x
        keep = 1.0 - self.probability
        masks = [self.mask(site, sample, x.shape[1:], x.device) for sample in samples]
        return x * (torch.stack(masks).to(x.dtype) / keep)

    def mask(self, site: str, sample: int, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return which entries of one sample stay, as booleans."""
        text = f"{self._seed}:{site}:{sample}".encode()
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
        generator = torch.Generator(device=device).manual_seed(seed)
        drawn = torch.rand(tuple(shape), generator=generator, device=device)
        return drawn >= self.probability
