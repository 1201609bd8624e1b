"""Which worker holds which piece of which tensor: plain Python, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from sailor.errors import InputError
from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan

EMBEDDING = "embedding.weight"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the whole model.

    `dim` is the dimension that tensor parallelism cuts, None where every rank holds the whole.
    Cuts fall on multiples of `granule` (the columns of one attention head, say). Where there are
    more ranks than granules, a granule is cut into up to `parts` equal parts; or, where ranks may
    share it (`readers`, the parts of another tensor that use a granule), each rank holds the
    granules that its parts of the other tensor use. `beside` names the tensor that a rank keeps
    it behind, so that both are one product.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None
    granule: int = 1
    parts: int = 1
    readers: int = 1
    beside: str = ""

    @property
    def extent(self) -> int:
        """Return the size along which pieces are named: `dim`'s, or the first one's."""
        return self.shape[self.dim or 0]

    @property
    def row_elements(self) -> int:
        """Return the elements of one index of that dimension."""
        total = 1
        for size in self.shape:
            total *= size
        return total // self.extent

    def pieces(self, tp: int) -> tuple[tuple[int, int], ...]:
        """Return what each of `tp` ranks holds, as indices [lo, hi) of the cut dimension."""
        if self.dim is None:
            return ((0, self.extent),) * tp
        return _pieces(self.extent, self.granule, self.parts, self.readers, tp)


@lru_cache(maxsize=4096)
def _pieces(
    extent: int, granule: int, parts: int, readers: int, tp: int
) -> tuple[tuple[int, int], ...]:
    granules = extent // granule
    if tp <= granules or readers == 1:
        bounds = cuts(extent, granule if tp <= granules else granule // parts, tp)
        return tuple(pairwise(bounds))
    used = pairwise(cuts(granules * readers, 1, tp))
    return tuple((lo // readers * granule, -(-hi // readers) * granule) for lo, hi in used)


@dataclass(frozen=True)
class Shard:
    """Indices [lo, hi) of a tensor's cut dimension (of its first where it is whole)."""

    name: str
    lo: int
    hi: int


@dataclass(frozen=True)
class Worker:
    """One process. Ranks are numbered stage by stage, replica by replica, tp rank by tp rank.

    `stage` is its place in the pipeline. Under an interleaved plan it holds several of the plan's
    stages: every pp-th one from there.
    """

    rank: int
    stage: int
    replica: int
    tp_rank: int
    tp: int

    def label(self) -> str:
        """Return a name for messages."""
        return f"stage {self.stage}, replica {self.replica}, tp rank {self.tp_rank}"


@dataclass(frozen=True)
class Holder:
    """A replica that holds a tensor: its ranks in tp order."""

    stage: int
    replica: int
    ranks: tuple[int, ...]


def cuts(extent: int, granule: int, tp: int) -> tuple[int, ...]:
    """Return the tp + 1 boundaries of `tp` contiguous pieces.

    Pieces are whole granules, their counts differ by at most one, the earlier ones are larger.
    """
    least, more = divmod(extent // granule, tp)
    position, found = 0, [0]
    for index in range(tp):
        position += (least + (index < more)) * granule
        found.append(position)
    return tuple(found)


def unit_tensors(spec: ModelSpec, unit: int) -> tuple[TensorSpec, ...]:
    """Return the tensors of one unit of a model, in a fixed order."""
    hidden = spec.hidden
    if unit == 0:
        table = TensorSpec(EMBEDDING, (spec.vocab, hidden), 0)
        if not spec.max_positions:
            return (table,)
        return (table, TensorSpec("positions.weight", (spec.max_positions, hidden)))
    if unit == spec.num_units - 1:
        name = EMBEDDING if spec.tied_embeddings else "head.weight"
        return (*_norm(spec, "final_norm"), TensorSpec(name, (spec.vocab, hidden), 0))
    return _block(spec, f"blocks.{unit - 1}")


def _norm(spec: ModelSpec, name: str) -> tuple[TensorSpec, ...]:
    weight = TensorSpec(f"{name}.weight", (spec.hidden,))
    if spec.norm == "rmsnorm":
        return (weight,)
    return (weight, TensorSpec(f"{name}.bias", (spec.hidden,)))


def _block(spec: ModelSpec, name: str) -> tuple[TensorSpec, ...]:
    # Tensors of one kind stand side by side: the runtime multiplies with query, key and value (and
    # with gate and up) at once.
    hidden, head = spec.hidden, spec.head_dim
    queries, keys = spec.num_heads * head, spec.num_kv_heads * head
    each = spec.num_heads // spec.num_kv_heads
    attention, mlp = f"{name}.attention", f"{name}.mlp"

    def inward(kind: str, *columns: int) -> list[TensorSpec]:
        name = f"{attention}.query.{kind}"
        return [
            TensorSpec(name, (queries, *columns), 0, head * each, each),
            *(
                TensorSpec(f"{attention}.{part}.{kind}", (keys, *columns), 0, head, 1, each, name)
                for part in ("key", "value")
            ),
        ]

    upward = ("gate", "up") if spec.gated_mlp else ("up",)
    found = [
        *_norm(spec, f"{name}.attention_norm"),
        *_norm(spec, f"{name}.mlp_norm"),
        *inward("weight", hidden),
        TensorSpec(f"{attention}.output.weight", (hidden, queries), 1, head * each, each),
        *(TensorSpec(f"{mlp}.{part}.weight", (spec.ffn, hidden), 0) for part in upward),
        TensorSpec(f"{mlp}.down.weight", (hidden, spec.ffn), 1),
    ]
    if spec.biases:
        found += [
            *inward("bias"),
            TensorSpec(f"{attention}.output.bias", (hidden,)),
            *(TensorSpec(f"{mlp}.{part}.bias", (spec.ffn,), 0) for part in upward),
            TensorSpec(f"{mlp}.down.bias", (hidden,)),
        ]
    return tuple(found)


def max_tp(spec: ModelSpec) -> int:
    """Return the largest tp: every rank holds a query head, an ffn column and a word."""
    return min(spec.num_heads, spec.ffn, spec.vocab)


@dataclass(frozen=True)
class PlanLayout:
    """A plan laid over a model: workers, tensors, holders and shards."""

    spec: ModelSpec
    plan: Plan

    def __post_init__(self) -> None:
        if self.plan.num_units != self.spec.num_units:
            raise InputError(
                f"the plan has {self.plan.num_units} units and {self.spec.name} has "
                f"{self.spec.num_units}",
                where="plan",
                hint="plan the same job that is run",
            )
        _check_runnable(self.spec, self.plan)
        for index, stage in enumerate(self.plan.stages):
            for j, replica in enumerate(stage.replicas):
                if replica.tp > max_tp(self.spec):
                    raise InputError(
                        f"tp {replica.tp} is more than {self.spec.name} can be cut into "
                        f"({max_tp(self.spec)}: every rank needs a head)",
                        where=f"plan: stages[{index}].replicas[{j}].tp",
                        hint="plan with a smaller tp",
                    )

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """Return every worker, by rank."""
        found: list[Worker] = []
        for index, stage in enumerate(self.plan.stages[: self.plan.pp]):
            for j, replica in enumerate(stage.replicas):
                for tp_rank in range(replica.tp):
                    found.append(Worker(len(found), index, j, tp_rank, replica.tp))
        return tuple(found)

    @cached_property
    def replica_ranks(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Return the ranks of each (stage, replica), in tp order."""
        found: dict[tuple[int, int], list[int]] = {}
        for worker in self.workers:
            found.setdefault((worker.stage, worker.replica), []).append(worker.rank)
        return {key: tuple(ranks) for key, ranks in found.items()}

    def chunks(self, stage: int) -> tuple[int, ...]:
        """Return which of the plan's stages the workers at a place in the pipeline hold."""
        return tuple(range(stage, len(self.plan.stages), self.plan.pp))

    def stage_tensors(self, stage: int) -> tuple[TensorSpec, ...]:
        """Return the tensors at a place in the pipeline in unit order, a tied table once."""
        found: dict[str, TensorSpec] = {}
        for chunk in self.chunks(stage):
            for unit in range(self.plan.stages[chunk].start, self.plan.stages[chunk].stop):
                for tensor in unit_tensors(self.spec, unit):
                    found.setdefault(tensor.name, tensor)
        return tuple(found.values())

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """Return every tensor of the model by name, in unit order."""
        found: dict[str, TensorSpec] = {}
        for unit in range(self.spec.num_units):
            for tensor in unit_tensors(self.spec, unit):
                found.setdefault(tensor.name, tensor)
        return found

    @cached_property
    def holders(self) -> dict[str, tuple[Holder, ...]]:
        """Return the replicas that hold each tensor (of two stages for a tied table)."""
        found: dict[str, list[Holder]] = {name: [] for name in self.tensors}
        for stage in range(self.plan.pp):
            for tensor in self.stage_tensors(stage):
                for replica in range(self.plan.dp):
                    ranks = self.replica_ranks[stage, replica]
                    found[tensor.name].append(Holder(stage, replica, ranks))
        return {name: tuple(holders) for name, holders in found.items()}

    def shard(self, tensor: TensorSpec, worker: Worker) -> Shard:
        """Return the piece of a tensor that a worker of a holder has."""
        return Shard(tensor.name, *tensor.pieces(worker.tp)[worker.tp_rank])

    def shards(self, rank: int) -> tuple[Shard, ...]:
        """Return what one worker holds, in unit order."""
        worker = self.workers[rank]
        return tuple(self.shard(tensor, worker) for tensor in self.stage_tensors(worker.stage))

    def owners(self, tensor: TensorSpec, holder: Holder, index: int) -> tuple[int, ...]:
        """Return the ranks of a holder that have `index` of a tensor's cut dimension.

        One, except for whole tensors and for key-value heads that ranks share.
        """
        pieces = tensor.pieces(len(holder.ranks))
        pairs = zip(holder.ranks, pieces, strict=True)
        return tuple(rank for rank, (lo, hi) in pairs if lo <= index < hi)

    def first_sample(self, replica: int) -> int:
        """Return where a pipeline's samples start within those of an iteration."""
        before: Sequence[int] = [
            r.microbatch * r.num_microbatches for r in self.plan.stages[0].replicas[:replica]
        ]
        return sum(before)


def _check_runnable(spec: ModelSpec, plan: Plan) -> None:
    """Refuse what a plan may say and this runtime doesn't do."""
    if spec.experts is not None:
        reason, hint = f"{spec.name} has experts", "train a dense model"
    elif plan.cp > 1:
        reason, hint = f"the plan splits sequences (cp {plan.cp})", "plan with cp 1"
    elif plan.zero in (2, 3):
        reason, hint = f"the plan has zero {plan.zero}", "plan with zero 0 or 1"
    elif plan.recompute == "operators":
        reason, hint = "the plan recomputes operators", "plan with recompute none or full"
    elif plan.vpp > 1 and plan.pp == 1:
        reason, hint = "the plan interleaves chunks of a single pipeline rank", "plan with vpp 1"
    else:
        return
    raise InputError(f"{reason}, which this runtime does not run", where="plan", hint=hint)
