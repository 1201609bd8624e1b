"""What one unit of a model computes, moves and keeps: counts that follow from shapes alone.

Everything is for one tensor-parallel rank. t = microbatch * seq_len / cp tokens, h the hidden
size, f the feed-forward size, V the padded vocabulary, e the bytes of an element (2 in 16-bit, 4
in fp32). `sailor.sim.ops` turns the counts into seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.execution import Execution, Precision
from sailor.model.profile import UnitBytes

# Extra activations of separate operations, bytes of t h: norms, bias and activation keep 16 more
# (Megatron-LM functional tests without fused kernels), a rotary embedding 8 more (copies of
# queries and keys, twice).
UNFUSED_NORMS = 16.0
UNFUSED_ROTARY = 8.0
UNFUSED_TRAFFIC = 1.7  # their element-wise traffic against that of fused kernels
OPERATORS_KEPT = 0.6  # of a block's activations with recompute "operators"
UNFUSED_PARALLEL = 4.0  # and the copies around tensor-parallel regions (Galvatron's profiles)


@dataclass(frozen=True)
class Gemm:
    """`batch` matrix products of [m, k] by [k, n]."""

    m: float
    n: float
    k: float
    batch: float = 1.0

    @property
    def flop(self) -> float:
        """Return the floating-point operations: 2 m n k each."""
        return 2 * self.m * self.n * self.k * self.batch

    def bytes_moved(self, element_bytes: int) -> float:
        """Return the bytes of its three matrices, each touched once."""
        touched = self.m * self.k + self.k * self.n + self.m * self.n
        return element_bytes * touched * self.batch

    def backward(self) -> tuple[Gemm, Gemm]:
        """Return the two products of the backward pass: for the input, for the weights."""
        return replace(self, n=self.k, k=self.n), replace(self, m=self.n, n=self.k, k=self.m)


@dataclass(frozen=True)
class PassWork:
    """The work of one pass (forward or backward) of one microbatch through a unit."""

    gemms: tuple[Gemm, ...]
    seq_len: int
    attention_flop: float  # of fused attention; eager attention is products and scores
    elementwise_bytes: float
    num_kernels: int  # beside the matrix products
    num_allreduces: int
    allreduce_bytes: float  # of each
    fp8: bool = False  # its matrix products run in 8 bits
    first_kernels: bool = False  # fused attention of the first generation
    scores: float = 0.0  # elements of the score matrices that eager attention writes

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
    """Return the forward pass with fused attention and dropout."""
    return unit_work(model, _usual(precision), kind, tp, microbatch)[0]


def backward_work(
    model: ModelSpec, kind: UnitKind, tp: int, microbatch: int, precision: Precision
) -> PassWork:
    """Return the backward pass: two products for each of the forward's, attention 2.5 times."""
    return unit_work(model, _usual(precision), kind, tp, microbatch)[1]


def _usual(precision: Precision) -> Execution:
    return Execution(precision=precision, dropout=True)


def unit_work(
    model: ModelSpec, execution: Execution, kind: UnitKind, tp: int, microbatch: int
) -> tuple[PassWork, PassWork]:
    """Return the forward and the backward pass of a unit. Traffic counts reads and writes."""
    if kind == "embedding":
        return _embedding_work(model, execution, microbatch)
    if kind == "head":
        return _head_work(model, execution, tp, microbatch)
    return _block_work(model, execution, tp, microbatch)


def _tokens(model: ModelSpec, execution: Execution, microbatch: int) -> float:
    return microbatch * model.seq_len / execution.cp


def _embedding_work(
    model: ModelSpec, execution: Execution, microbatch: int
) -> tuple[PassWork, PassWork]:
    """Look up a row, write it, add up the ranks' partial tables; backward adds to the rows."""
    tokens = _tokens(model, execution, microbatch)
    message = float(element_bytes(execution.precision) * tokens * model.hidden)
    forward = PassWork((), model.seq_len, 0.0, 3 * message, 2, 1, message)
    return forward, replace(forward, num_allreduces=0, allreduce_bytes=0.0)


def _head_work(
    model: ModelSpec, execution: Execution, tp: int, microbatch: int
) -> tuple[PassWork, PassWork]:
    """Cross entropy reads and writes about 20 bytes a logit forward, 12 backward."""
    tokens = _tokens(model, execution, microbatch)
    message = float(element_bytes(execution.precision) * tokens * model.hidden)
    rows = model.padded_vocab(tp, execution.vocab_divisor) / tp
    gemm = Gemm(tokens, rows, model.hidden)
    forward = PassWork((gemm,), model.seq_len, 0.0, 3 * message + 20 * tokens * rows, 6, 0, 0.0)
    moved = 5 * message + 12 * tokens * rows
    return forward, PassWork(gemm.backward(), model.seq_len, 0.0, moved, 6, 1, message)


def _block_work(
    model: ModelSpec, execution: Execution, tp: int, microbatch: int
) -> tuple[PassWork, PassWork]:
    """In 16-bit a block moves 22 t h (14 without dropout) + 4 t a d / tp + 4 t f / tp bytes
    forward, 36 t h + 10 t a d / tp + 8 t f / tp backward; a gate adds 2 t f + 8 t h and
    2 t f + 12 t h (over tp). Sequence parallelism divides the terms in t h by tp.
    """
    tokens, hidden = _tokens(model, execution, microbatch), model.hidden
    scale = element_bytes(execution.precision) / 2
    traffic = scale if execution.fused_norms else scale * UNFUSED_TRAFFIC
    spread = tp if execution.sequence_parallel else 1
    own = 2 * tokens * model.num_heads * model.head_dim / tp
    ffn, gemms = ffn_columns(model, tp), _block_gemms(model, execution, tp, tokens)
    gate = tokens * hidden / tp if model.gated_mlp else 0.0
    wide = tokens * ffn
    moved = (22 if execution.dropout else 14) * tokens * hidden / spread + 2 * own
    moved += 6 * wide + 8 * gate if model.gated_mlp else 4 * wide
    moved_back = 36 * tokens * hidden / spread + 5 * own
    moved_back += 10 * wide + 12 * gate if model.gated_mlp else 8 * wide
    attention = _attention_flop(model, execution, tp, microbatch)
    scores = 0.0
    if execution.attention == "eager":
        products = _score_gemms(model, execution, tp, microbatch)
        gemms, attention = gemms + products, 0.0
        scores = products[0].batch * products[0].m * products[0].n
    message = float(2 * scale * tokens * hidden)
    first = execution.attention == "flash1"
    forward = PassWork(
        gemms, model.seq_len, attention, moved * traffic, 6, 2, message,
        execution.fp8, first, scores,
    )  # fmt: skip
    backward = PassWork(
        tuple(product for gemm in gemms for product in gemm.backward()),
        model.seq_len, 2.5 * attention, moved_back * traffic, 12, 2, message,
        execution.fp8, first, scores,
    )  # fmt: skip
    return forward, backward


def block_params(model: ModelSpec, tp: int) -> float:
    """Return a block's parameters outside of routed experts, averaged over the blocks."""
    if model.experts is None:
        return float(model.unit_params("block", tp))
    routed = model.experts.num_experts * model.ffn_params(model.experts.ffn, tp)
    return model.unit_params("block", tp) - model.experts_share * routed


def expert_params(model: ModelSpec, execution: Execution, tp: int) -> float:
    """Return a block's parameters in the rank's share of the routed experts, averaged."""
    experts = model.experts
    if experts is None:
        return 0.0
    one = model.ffn_params(experts.ffn, execution.expert_tp or tp)
    return model.experts_share * experts.num_experts / execution.ep * one


def block_saved_bytes(model: ModelSpec, execution: Execution, tp: int, microbatch: int) -> float:
    """Return the bytes a block keeps of one microbatch for its backward pass.

    In elements: 4 t h (inputs of the norms and of the two parallel regions), (1 + 2 kv/heads) and
    1 times t times the attention width (queries, keys, values, attention's output), 2 t f (3 t f
    gated); 2 t h bytes of dropout masks. Attention adds 4 bytes a head and token of softmax
    statistics (flash), or a score matrix and its dropout: 5 bytes a score (2 + 2 + 1), 2 without
    dropout. In 16-bit with kv = heads and f = 4 h that is Korthikanti's t h (34 + 5 a s / h).
    """
    tokens, hidden = _tokens(model, execution, microbatch), model.hidden
    size = element_bytes(execution.precision)
    spread = tp if execution.sequence_parallel else 1
    own = model.num_heads * model.head_dim / tp
    keys = 2 * model.num_kv_heads * model.head_dim / tp
    kept = size * 4 * tokens * hidden / spread + size * tokens * (2 * own + keys)
    kept += _saved_ffn_bytes(model, execution, tp, tokens)
    if execution.dropout:
        kept += 2 * tokens * hidden / spread
    heads = model.num_heads / tp
    if execution.attention == "eager" and execution.recompute == "selective":
        pass  # the score matrix is what selective recomputation computes again
    elif execution.attention == "eager":
        each = 2.5 * size if execution.dropout else size
        kept += each * microbatch * heads * model.seq_len**2 / execution.cp
    else:
        kept += 4 * tokens * heads
    if not execution.fused_norms:
        kept += UNFUSED_NORMS * tokens * hidden / spread
        if tp > 1:
            kept += UNFUSED_PARALLEL * tokens * hidden / spread
        if not model.max_positions:
            kept += UNFUSED_ROTARY * tokens * hidden / tp
        if model.gated_mlp:
            kept += size * tokens * _ffn(model.ffn, tp)
    if execution.recompute == "operators":
        kept *= OPERATORS_KEPT
    return kept


def _saved_ffn_bytes(model: ModelSpec, execution: Execution, tp: int, tokens: float) -> float:
    """Return what the feed-forward part keeps: 2 t f elements (3 t f gated).

    With experts every token visits top_k of them, over all ranks as many rows as here; the rows
    that were routed and their outputs are kept as well (2 top_k t h), and two copies of the
    tokens in their old order (2 t h).
    """
    size = element_bytes(execution.precision)
    columns = 3 if model.gated_mlp else 2
    dense = size * columns * tokens * _ffn(model.ffn, tp)
    experts = model.experts
    if experts is None:
        return dense
    # Tokens are spread over tp where the expert group is not the tensor-parallel one.
    share = model.experts_share
    expert_tp = execution.expert_tp or tp
    routed = tokens * experts.top_k * expert_tp / tp
    sparse = size * columns * routed * experts.ffn / expert_tp + 2 * size * routed * model.hidden
    sparse += size * columns * tokens * experts.shared_ffn / tp + 2 * size * tokens * model.hidden
    return (1 - share) * dense + share * sparse


def unit_bytes(model: ModelSpec, execution: Execution, kind: UnitKind, tp: int) -> UnitBytes:
    """Return parameters, kept activations and output of a unit for one sample.

    Full recomputation keeps a block's input, spread over the ranks by sequence parallelism. The
    embedding keeps its dropout's mask. What a head keeps depends on framework and GPU type:
    `analytic_memory.head_bytes`; here the logits, their fp32 softmax and the inputs of norm and
    head count.
    """
    tokens, hidden = _tokens(model, execution, 1), model.hidden
    size = element_bytes(execution.precision)
    spread = tp if execution.sequence_parallel else 1
    rows = model.padded_vocab(tp, execution.vocab_divisor) / tp
    table = round(rows * hidden)
    norm = hidden * (2 if model.norm == "layernorm" else 1)
    output = float(size * tokens * hidden)
    if kind == "embedding":
        params = table + model.max_positions * hidden
        kept = tokens * hidden / spread if execution.dropout else 0.0
        if not execution.fused_norms:
            kept += 4 * tokens * hidden / spread
    elif kind == "head":
        params = table + norm
        kept = (size + 4) * tokens * rows + 2 * output
        output = 4.0 * tokens * rows
    else:
        params = round(block_params(model, tp) + expert_params(model, execution, tp))
        if execution.recompute == "full":
            kept = output / spread
        else:
            kept = block_saved_bytes(model, execution, tp, 1)
    return UnitBytes(params=params, activation_bytes=kept, output_bytes=output)


def _block_gemms(
    model: ModelSpec, execution: Execution, tp: int, tokens: float
) -> tuple[Gemm, ...]:
    own = model.num_heads * model.head_dim / tp
    keys = 2 * model.num_kv_heads * model.head_dim / tp
    attention = (Gemm(tokens, own + keys, model.hidden), Gemm(tokens, model.hidden, own))
    num_up = 2 if model.gated_mlp else 1
    experts = model.experts
    if experts is None:
        ffn = _ffn(model.ffn, tp)
        return (
            *attention,
            Gemm(tokens, num_up * ffn, model.hidden),
            Gemm(tokens, model.hidden, ffn),
        )
    expert_tp = execution.expert_tp or tp
    local = experts.num_experts / execution.ep
    rows = tokens * experts.top_k * expert_tp / tp / local
    ffn = _ffn(experts.ffn, expert_tp)
    routed = (
        Gemm(rows, num_up * ffn, model.hidden, local),
        Gemm(rows, model.hidden, ffn, local),
    )
    if not experts.shared_ffn:
        return attention + routed
    ffn = _ffn(experts.shared_ffn, tp)
    shared = (Gemm(tokens, num_up * ffn, model.hidden), Gemm(tokens, model.hidden, ffn))
    return attention + routed + shared


def _score_gemms(
    model: ModelSpec, execution: Execution, tp: int, microbatch: int
) -> tuple[Gemm, Gemm]:
    """Return the products of eager attention: scores, and scores times values."""
    batch = microbatch * model.num_heads / tp
    rows, columns = model.seq_len / execution.cp, float(model.seq_len)
    scores = Gemm(rows, columns, float(model.head_dim), batch)
    return scores, Gemm(rows, float(model.head_dim), columns, batch)


def ffn_columns(model: ModelSpec, tp: int) -> float:
    """Return the feed-forward columns that a token passes on one rank."""
    experts = model.experts
    if experts is None:
        return float(_ffn(model.ffn, tp))
    return (experts.top_k * experts.ffn + experts.shared_ffn) / tp


def _ffn(columns: int, tp: int) -> int:
    """Return the feed-forward columns of one rank, rounded up as `ModelSpec.unit_params` does."""
    return -(-columns // tp)


def _attention_flop(model: ModelSpec, execution: Execution, tp: int, microbatch: int) -> float:
    """Return 4 b s^2 (heads * head_dim) / (tp cp): both products, halved by the causal mask."""
    width = model.num_heads * model.head_dim / tp
    return 0.5 * 4 * microbatch * model.seq_len**2 * width / execution.cp
