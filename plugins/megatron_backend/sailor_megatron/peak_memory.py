"""The memory that a worker uses and has used."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812


def peak_memory(device: torch.device) -> int:
    """Return bytes: of the GPU's allocator, or the resident set of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not getrusage where the kernel says it: a new process starts with its parent's peak there.
    peak = _kernel_says("VmHWM")
    if peak is not None:
        return peak
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def memory_before(device: torch.device) -> int:
    """Return bytes in use before a model is built; on a system that says only peaks, the peak.

    On a CPU torch's code counts once it has been used, and is no part of a model: so the kinds of
    operations that models use run once, on a few numbers.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    _use_code()
    now = _kernel_says("VmRSS")
    return peak_memory(device) if now is None else now


def _use_code() -> None:
    x = torch.ones(2, 4, 16, requires_grad=True)
    weight = torch.ones(16, 16, requires_grad=True)
    hidden = F.linear(F.layer_norm(x, (16,)), weight).view(2, 2, 4, 8)
    hidden = F.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)
    logits = F.gelu(F.linear(hidden.reshape(8, 16), weight, weight[0]))
    loss = F.cross_entropy(logits, torch.zeros(8, dtype=torch.int64), reduction="sum")
    torch.autograd.backward(loss)
    moments = [torch.zeros(16, 16) for _ in range(2)]
    if weight.grad is not None:
        torch._fused_adam_(
            [weight.detach()], [weight.grad], moments[:1], moments[1:], [], [torch.ones(())],
            lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False,
            maximize=False,
        )  # fmt: skip


def what_is_measured(device: torch.device) -> str:
    """Return in words what `peak_memory` less `memory_before` says."""
    if device.type == "cuda":
        return "bytes of the GPU's allocator"
    return "growth of the resident set since before the model was built"


def _kernel_says(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else None
