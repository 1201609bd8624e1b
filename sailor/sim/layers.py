"""What one unit of a model computes, moves and keeps: counts that follow from shapes alone.

Everything is for one tensor-parallel rank. t = microbatch * seq_len tokens, h the hidden size,
f the feed-forward size, V the padded vocabulary, e the bytes of an element (2 in 16-bit, 4 in
fp32). Attention is the fused kind (flash): no score matrix is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.job import Precision
from sailor.model.profile import UnitBytes


@dataclass(frozen=True)
class Gemm:
    """A matrix product of [m, k] by [k, n]."""

    m: float
    n: float
    k: float

    @property
    def flop(self) -> float:
        """Return the floating-point operations: 2 m n k."""
        return 2 * self.m * self.n * self.k

    def bytes_moved(self, element_bytes: int) -> float:
        """Return the bytes of its three matrices, each touched once."""
        return element_bytes * (self.m * self.k + self.k * self.n + self.m * self.n)

    def backward(self) -> tuple[Gemm, Gemm]:
        """Return the two products of the backward pass: for the input, for the weights."""
        return Gemm(self.m, self.k, self.n), Gemm(self.n, self.k, self.m)


@dataclass(frozen=True)
class PassWork:
    """The work of one pass (forward or backward) of one microbatch through a unit."""

    gemms: tuple[Gemm, ...]
    seq_len: int
    attention_flop: float
    elementwise_bytes: float
    num_kernels: int  # beside the matrix products
    num_allreduces: int
    allreduce_bytes: float  # of each

    @property
    def flop(self) -> float:
        """Return all floating-point operations of matrix products and attention."""
        return sum(gemm.flop for gemm in self.gemms) + self.attention_flop


def element_bytes(precision: Precision) -> int:
    """Return the bytes of an activation or weight that takes part in matrix products."""
    return 4 if precision == "fp32" else 2


def forward_work(
    model: ModelSpec, kind: UnitKind, tp: int, microbatch: int, precision: Precision
) -> PassWork:
    """Return the forward pass. Element-wise traffic counts reads and writes, dropout included."""
    tokens, hidden = microbatch * model.seq_len, model.hidden
    scale = element_bytes(precision)
    message = float(scale * tokens * hidden)
    if kind == "embedding":
        # Look up a row, write it; the ranks' partial tables are added up.
        return PassWork((), model.seq_len, 0.0, 3 * message, 2, 1, message)
    if kind == "head":
        # Cross entropy reads and writes about 20 bytes a logit (16-bit logits, fp32 softmax).
        logits = tokens * model.padded_vocab(tp) / tp
        gemms: tuple[Gemm, ...] = (_head_gemm(model, tp, tokens),)
        moved = 3 * message + 20 * logits
        return PassWork(gemms, model.seq_len, 0.0, moved, 6, 0, 0.0)
    ffn = _ffn(model, tp) * tokens
    own = 2 * tokens * model.num_heads * model.head_dim / tp
    # 22 t h + 4 t h / tp + (4 f, or 6 f + 8 h gated) t bytes in 16-bit.
    mlp = 6 * ffn + 8 * tokens * hidden / tp if model.gated_mlp else 4 * ffn
    elementwise = (22 * tokens * hidden + 2 * own + mlp) * scale / 2
    gemms = _block_gemms(model, tp, tokens)
    attention = _attention_flop(model, tp, microbatch)
    return PassWork(gemms, model.seq_len, attention, elementwise, 6, 2, message)


def backward_work(
    model: ModelSpec, kind: UnitKind, tp: int, microbatch: int, precision: Precision
) -> PassWork:
    """Return the backward pass: two products for each of the forward's, attention 2.5 times."""
    tokens, hidden = microbatch * model.seq_len, model.hidden
    scale = element_bytes(precision)
    message = float(scale * tokens * hidden)
    if kind == "embedding":
        # Add the gradients to the rows that were looked up.
        return PassWork((), model.seq_len, 0.0, 3 * message, 2, 0, 0.0)
    if kind == "head":
        logits = tokens * model.padded_vocab(tp) / tp
        gemms: tuple[Gemm, ...] = _head_gemm(model, tp, tokens).backward()
        moved = 5 * message + 12 * logits
        return PassWork(gemms, model.seq_len, 0.0, moved, 6, 1, message)
    ffn = _ffn(model, tp) * tokens
    own = 2 * tokens * model.num_heads * model.head_dim / tp
    # 36 t h + 10 t h / tp + (8 f, or 10 f + 12 h gated) t bytes in 16-bit.
    mlp = 10 * ffn + 12 * tokens * hidden / tp if model.gated_mlp else 8 * ffn
    elementwise = (36 * tokens * hidden + 5 * own + mlp) * scale / 2
    gemms = tuple(
        product for gemm in _block_gemms(model, tp, tokens) for product in gemm.backward()
    )
    attention = 2.5 * _attention_flop(model, tp, microbatch)
    return PassWork(gemms, model.seq_len, attention, elementwise, 12, 2, message)


def unit_bytes(model: ModelSpec, kind: UnitKind, tp: int, precision: Precision) -> UnitBytes:
    """Return parameters, kept activations and output of a unit for one sample.

    A block keeps, in elements, 4 t h (inputs of the norms and of the two parallel regions) on
    every rank, and on its share (1 + 2 kv/heads) and 1 times the attention width (queries, keys,
    values, attention's output) and 2 f (3 f gated); 2 t h bytes of dropout masks; 4 bytes a head
    and token of softmax statistics. In 16-bit with kv = heads and f = 4 h that is Korthikanti et
    al. 2022's s b h (10 + 24 / tp), without the 5 a s / h of a stored score matrix.
    """
    tokens, hidden = model.seq_len, model.hidden
    size = element_bytes(precision)
    output = float(size * tokens * hidden)
    if kind == "embedding":
        kept = output + tokens * hidden  # and a byte of dropout mask
    elif kind == "head":
        # Logits and their softmax: 2 + 4 bytes in 16-bit, 4 + 4 in fp32; inputs of norm and head.
        kept = (size + 4) * tokens * model.padded_vocab(tp) / tp + 2 * output
        output = 4.0 * tokens * model.padded_vocab(tp)
    else:
        own = model.num_heads * model.head_dim / tp
        keys = 2 * model.num_kv_heads * model.head_dim / tp
        mlp = (3 if model.gated_mlp else 2) * _ffn(model, tp)
        kept = (
            size * tokens * (4 * hidden + 2 * own + keys + mlp)
            + 2 * tokens * hidden
            + 4 * tokens * model.num_heads / tp
        )
    return UnitBytes(params=model.unit_params(kind, tp), activation_bytes=kept, output_bytes=output)


def _block_gemms(model: ModelSpec, tp: int, tokens: int) -> tuple[Gemm, ...]:
    own = model.num_heads * model.head_dim / tp
    keys = 2 * model.num_kv_heads * model.head_dim / tp
    ffn = _ffn(model, tp)
    up = ffn * (2 if model.gated_mlp else 1)
    return (
        Gemm(tokens, own + keys, model.hidden),
        Gemm(tokens, model.hidden, own),
        Gemm(tokens, up, model.hidden),
        Gemm(tokens, model.hidden, ffn),
    )


def _head_gemm(model: ModelSpec, tp: int, tokens: int) -> Gemm:
    return Gemm(tokens, model.padded_vocab(tp) / tp, model.hidden)


def _ffn(model: ModelSpec, tp: int) -> int:
    """Return the feed-forward columns of one rank, rounded up as `ModelSpec.unit_params` does."""
    return -(-model.ffn // tp)


def _attention_flop(model: ModelSpec, tp: int, microbatch: int) -> float:
    """Return 4 b s^2 (heads * head_dim) / tp: both products, halved by the causal mask."""
    width = model.num_heads * model.head_dim / tp
    return 0.5 * 4 * microbatch * model.seq_len**2 * width
