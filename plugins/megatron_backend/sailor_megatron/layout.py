"""Which worker holds which piece of which tensor: plain Python, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sailor.errors import InputError
from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan

EMBEDDING = "embedding.weight"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the whole model.

    `dim` is the dimension that tensor parallelism cuts, None where every rank holds the whole.
    Cuts fall on multiples of `granule` (the columns of one attention head, say).
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None
    granule: int = 1

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


@dataclass(frozen=True)
class Shard:
    """Indices [lo, hi) of a tensor's cut dimension (of its first where it is whole)."""

    name: str
    lo: int
    hi: int


@dataclass(frozen=True)
class Worker:
    """One process. Ranks are numbered stage by stage, replica by replica, tp rank by tp rank."""

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
    query_granule = head * (spec.num_heads // spec.num_kv_heads)
    attention, mlp = f"{name}.attention", f"{name}.mlp"
    inward = (
        ("query", queries, query_granule),
        ("key", keys, head),
        ("value", keys, head),
    )
    upward = ("gate", "up") if spec.gated_mlp else ("up",)
    found = [
        *_norm(spec, f"{name}.attention_norm"),
        *_norm(spec, f"{name}.mlp_norm"),
        *(TensorSpec(f"{attention}.{part}.weight", (n, hidden), 0, g) for part, n, g in inward),
        TensorSpec(f"{attention}.output.weight", (hidden, queries), 1, query_granule),
        *(TensorSpec(f"{mlp}.{part}.weight", (spec.ffn, hidden), 0) for part in upward),
        TensorSpec(f"{mlp}.down.weight", (hidden, spec.ffn), 1),
    ]
    if spec.biases:
        found += [
            *(TensorSpec(f"{attention}.{part}.bias", (n,), 0, g) for part, n, g in inward),
            TensorSpec(f"{attention}.output.bias", (hidden,)),
            *(TensorSpec(f"{mlp}.{part}.bias", (spec.ffn,), 0) for part in upward),
            TensorSpec(f"{mlp}.down.bias", (hidden,)),
        ]
    return tuple(found)


def max_tp(spec: ModelSpec) -> int:
    """Return the largest tp: every rank holds a key-value head, an ffn column and a word."""
    return min(spec.num_kv_heads, spec.ffn, spec.vocab)


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
        for index, stage in enumerate(self.plan.stages):
            for j, replica in enumerate(stage.replicas):
                if replica.tp > max_tp(self.spec):
                    raise InputError(
                        f"tp {replica.tp} is more than {self.spec.name} can be cut into "
                        f"({max_tp(self.spec)}: every rank needs a key-value head)",
                        where=f"plan: stages[{index}].replicas[{j}].tp",
                        hint="plan with a smaller tp",
                    )

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """Return every worker, by rank."""
        found: list[Worker] = []
        for index, stage in enumerate(self.plan.stages):
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

    def stage_tensors(self, stage: int) -> tuple[TensorSpec, ...]:
        """Return the tensors of a stage in unit order; a tied table held twice is there once."""
        found: dict[str, TensorSpec] = {}
        for unit in range(self.plan.stages[stage].start, self.plan.stages[stage].stop):
            for tensor in unit_tensors(self.spec, unit):
                found.setdefault(tensor.name, tensor)
        return tuple(found.values())

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """Return every tensor of the model by name, in unit order."""
        found: dict[str, TensorSpec] = {}
        for stage in range(self.plan.pp):
            for tensor in self.stage_tensors(stage):
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
        if tensor.dim is None:
            return Shard(tensor.name, 0, tensor.extent)
        bounds = cuts(tensor.extent, tensor.granule, worker.tp)
        return Shard(tensor.name, bounds[worker.tp_rank], bounds[worker.tp_rank + 1])

    def shards(self, rank: int) -> tuple[Shard, ...]:
        """Return what one worker holds, in unit order."""
        worker = self.workers[rank]
        return tuple(self.shard(tensor, worker) for tensor in self.stage_tensors(worker.stage))

    def owner(self, tensor: TensorSpec, holder: Holder, index: int) -> int:
        """Return the rank of a holder that has `index` of a cut tensor's dimension."""
        bounds = cuts(tensor.extent, tensor.granule, len(holder.ranks))
        for rank, hi in zip(holder.ranks, bounds[1:], strict=True):
            if index < hi:
                return rank
        raise IndexError(f"{tensor.name} has {tensor.extent} indices, not {index + 1}")

    def first_sample(self, replica: int) -> int:
        """Return where a pipeline's samples start within those of an iteration."""
        before: Sequence[int] = [
            r.microbatch * r.num_microbatches for r in self.plan.stages[0].replicas[:replica]
        ]
        return sum(before)
