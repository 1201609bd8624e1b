"""Rotary position embeddings: how fast each pair of columns turns, and the turn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sailor_megatron.options import RopeScaling, RunOptions


def rotary_angles(head_dim: int, seq_len: int, options: RunOptions) -> Tensor:
    """Return radians [positions, head_dim / 2], in fp64."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = options.rope_theta**-exponents
    if options.rope_scaling is not None:
        frequencies = _slowed(frequencies, options.rope_scaling)
    return torch.outer(torch.arange(seq_len, dtype=torch.float64), frequencies)


def _slowed(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Return frequencies as Llama 3.1 changes them for longer sequences.

    Waves that the original length holds less than `low_freq_factor` times are slowed by `factor`,
    those that it holds more than `high_freq_factor` times stay, and between them it is linear.
    """
    waves = scaling.original_positions * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((waves - scaling.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


class Rotary:
    """Turns queries and keys, in the half-split layout of Llama."""

    def __init__(
        self,
        head_dim: int,
        seq_len: int,
        options: RunOptions,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        angles = rotary_angles(head_dim, seq_len, options)
        self._cos = angles.cos().to(device=device, dtype=dtype)
        self._sin = angles.sin().to(device=device, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [samples, heads, positions, head_dim] turned by its positions."""
        first, second = x.chunk(2, dim=-1)
        cos, sin = self._cos[: x.shape[-2]], self._sin[: x.shape[-2]]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
