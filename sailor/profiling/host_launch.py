"""Host time to launch the kernels of a transformer block in eager PyTorch.

The block is Llama's as a plain program writes it out, one token at a time with a cache of keys and
values: norm, rotary embedding and gate in separate operations, no gradient. At a tiny width the
device is done before the host has launched the next kernel, so that the time is the host's.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sailor.profiling.measure import spread_of

_HEADS, _HEAD_DIM, _POSITIONS = 4, 16, 64
_HIDDEN = _HEADS * _HEAD_DIM
_WARM_UP, _REPEATS = 20, 50
_BLOCKS = 4  # in a sample: few enough that no driver's launch queue is full


class LaunchedBlock:
    """One block with its cache; calling it launches a token's forward pass."""

    def __init__(self, device: torch.device) -> None:
        wide = torch.float32 if device.type == "cpu" else torch.float16

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, device=device).mul_(0.02).to(wide)

        self._attention_norm, self._feed_forward_norm = random(_HIDDEN), random(_HIDDEN)
        self._inputs = random(3 * _HIDDEN, _HIDDEN)
        self._output = random(_HIDDEN, _HIDDEN)
        self._gate, self._up = random(4 * _HIDDEN, _HIDDEN), random(4 * _HIDDEN, _HIDDEN)
        self._down = random(_HIDDEN, 4 * _HIDDEN)
        shape = (1, _HEADS, _POSITIONS, _HEAD_DIM)
        self._keys, self._values = random(*shape), random(*shape)
        angles = torch.randn(1, 1, 1, _HEAD_DIM // 2, 2, device=device)
        self._turn = angles
        self._position = torch.tensor([_POSITIONS // 2], device=device)
        self._mask = torch.ones(1, 1, 1, _POSITIONS, dtype=torch.bool, device=device)
        self.token = random(1, 1, _HIDDEN)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's output for [1, 1, hidden]."""
        x = x + self._attend(_normed(x, self._attention_norm))
        return x + self._fed_forward(_normed(x, self._feed_forward_norm))

    def _attend(self, x: Tensor) -> Tensor:
        parts = torch.split(F.linear(x, self._inputs), _HIDDEN, dim=-1)
        query, key, value = (part.view(1, 1, _HEADS, _HEAD_DIM) for part in parts)
        query, key = self._turned(query), self._turned(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        self._keys[:, :, self._position] = key
        self._values[:, :, self._position] = value
        keys = self._keys.repeat_interleave(1, dim=1)
        values = self._values.repeat_interleave(1, dim=1)
        result = F.scaled_dot_product_attention(query, keys, values, attn_mask=self._mask)
        return F.linear(result.transpose(1, 2).contiguous().view(1, 1, _HIDDEN), self._output)

    def _fed_forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self._gate)) * F.linear(x, self._up), self._down)

    def _turned(self, x: Tensor) -> Tensor:
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        turned = torch.stack(
            (
                pairs[..., 0] * self._turn[..., 0] - pairs[..., 1] * self._turn[..., 1],
                pairs[..., 1] * self._turn[..., 0] + pairs[..., 0] * self._turn[..., 1],
            ),
            dim=-1,
        )
        return turned.flatten(3).type_as(x)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    shrunk = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-5)
    return shrunk.type_as(x) * weight


def launch_seconds(device: torch.device) -> tuple[float, float]:
    """Return the median host seconds to launch a block, and the interquartile range over it.

    The clock stops before the device is waited for. On a CPU device, which computes as it
    launches, the time is both.
    """
    block = LaunchedBlock(device)
    samples = []
    with torch.no_grad():
        for turn in range(_WARM_UP + _REPEATS):
            _settle(device)
            x = block.token
            started = time.perf_counter()
            for _ in range(_BLOCKS):
                x = block(x)
            taken_s = time.perf_counter() - started
            if turn >= _WARM_UP:
                samples.append(taken_s / _BLOCKS)
    _settle(device)
    return sorted(samples)[len(samples) // 2], spread_of(samples)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
