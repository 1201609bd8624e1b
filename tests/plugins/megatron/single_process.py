"""The reference: a plain torch model in one process, written without the runtime's parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sailor.model.arch import ModelSpec
from sailor_megatron.layout import unit_tensors
from sailor_megatron.models.dropout import Dropout
from sailor_megatron.options import RunOptions
from sailor_megatron.parameters import initial_tensor

CPU = torch.device("cpu")


class Reference:
    """Parameters by name, a forward of all samples at once, torch's own Adam."""

    def __init__(self, spec: ModelSpec, options: RunOptions, dtype: torch.dtype) -> None:
        self.spec, self.options = spec, options
        tensors = [t for unit in range(spec.num_units) for t in unit_tensors(spec, unit)]
        self.parameters = {
            t.name: nn.Parameter(initial_tensor(spec, t, options.seed).to(dtype)) for t in tensors
        }
        self.optimizer = torch.optim.Adam(
            self.parameters.values(),
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            fused=False,
        )
        self.dropout = Dropout(options.dropout, options.seed)
        self.dropped_weights = Dropout(options.attention_dropout, options.seed)

    def loss(self, windows: Tensor, samples: Sequence[int]) -> Tensor:
        p, spec = self.parameters, self.spec
        x = p["embedding.weight"][windows[:, :-1]]
        if spec.max_positions:
            x = x + p["positions.weight"][: x.shape[1]]
        x = self.dropout(x, "embedding", samples)
        for index in range(spec.num_layers):
            name = f"blocks.{index}"
            attended = self._attention(self._norm(x, f"{name}.attention_norm"), name, samples)
            x = x + self.dropout(attended, f"{name}.attention", samples)
            expanded = self._mlp(self._norm(x, f"{name}.mlp_norm"), name)
            x = x + self.dropout(expanded, f"{name}.mlp", samples)
        x = self._norm(x, "final_norm")
        logits = x @ p["embedding.weight" if spec.tied_embeddings else "head.weight"].T
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="mean")

    def step(self, windows: Tensor, samples: Sequence[int]) -> tuple[float, float]:
        """Return loss and gradient norm of one training step."""
        self.optimizer.zero_grad()
        loss = self.loss(windows, samples)
        loss.backward()
        limit = self.options.clip_norm or math.inf
        self.gradients = {n: q.grad.clone() for n, q in self.parameters.items()}
        norm = torch.stack([(g * g).sum() for g in self.gradients.values()]).sum().sqrt()
        if norm > limit:  # exactly; torch's clip_grad_norm_ divides by the norm plus 1e-6
            for parameter in self.parameters.values():
                parameter.grad.mul_(limit / norm)
        for row in self.optimizer.param_groups:
            row["lr"] = self.options.learning_rate
        self.optimizer.step()
        return loss.item(), norm.item()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.parameters[f"{name}.weight"]
        if self.spec.norm == "rmsnorm":
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        return centred * scale * weight + self.parameters[f"{name}.bias"]

    def _attention(self, h: Tensor, name: str, samples: Sequence[int]) -> Tensor:
        spec = self.spec
        count, length, _ = h.shape

        def heads(part: str, number: int) -> Tensor:
            y = self._linear(h, f"{name}.attention.{part}")
            return y.view(count, length, number, spec.head_dim).transpose(1, 2)

        query, key = heads("query", spec.num_heads), heads("key", spec.num_kv_heads)
        value = heads("value", spec.num_kv_heads)
        if not spec.max_positions:
            query, key = self._turn(query), self._turn(key)
        each = spec.num_heads // spec.num_kv_heads
        key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
        scores = query @ key.transpose(-1, -2) / math.sqrt(spec.head_dim)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        if self.options.attention_dropout:
            kept = self._kept_weights(name, samples, length).to(weights.dtype)
            weights = weights * kept / (1 - self.options.attention_dropout)
        mixed = (weights @ value).transpose(1, 2).reshape(count, length, -1)
        return self._linear(mixed, f"{name}.attention.output")

    def _kept_weights(self, name: str, samples: Sequence[int], length: int) -> Tensor:
        site = f"{name}.attention.probabilities"
        rows = [
            [
                self.dropped_weights.mask(f"{site}.{head}", sample, (length, length), CPU)
                for head in range(self.spec.num_heads)
            ]
            for sample in samples
        ]
        return torch.stack([torch.stack(row) for row in rows])

    def _turn(self, x: Tensor) -> Tensor:
        """Rotate pairs (i, i + d/2) of each position as complex numbers."""
        half = self.spec.head_dim // 2
        theta = self.options.rope_theta
        angle = [
            [t * theta ** (-2 * i / (2 * half)) for i in range(half)] for t in range(x.shape[2])
        ]
        turn = torch.polar(
            torch.ones(len(angle), half, dtype=torch.float64),
            torch.tensor(angle, dtype=torch.float64),
        )
        z = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
        return torch.cat((z.real, z.imag), -1).to(x.dtype)

    def _mlp(self, h: Tensor, name: str) -> Tensor:
        up = self._linear(h, f"{name}.mlp.up")
        if self.spec.gated_mlp:
            gate = self._linear(h, f"{name}.mlp.gate")
            up = gate * gate.sigmoid() * up
        elif self.options.activation == "relu":
            up = up.clamp(min=0)
        else:
            up = F.gelu(up)
        return self._linear(up, f"{name}.mlp.down")
