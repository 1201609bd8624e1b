"""Generated small models and plans."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan, Replica, Stage


def small_model(rng: random.Random, **changes: object) -> ModelSpec:
    """Return a model of one of the families whose query heads can be cut four ways."""
    family = rng.choice(("gpt", "opt", "llama"))
    kv = rng.choice((4, 5, 6)) if family != "llama" else rng.choice((1, 2, 3, 4, 5))
    heads = kv if family != "llama" else kv * rng.choice({1: (4, 6), 2: (2, 3)}.get(kv, (2,)))
    head_dim = rng.choice((2, 4))
    fields: dict[str, object] = {
        "name": family,
        "num_layers": rng.randint(1, 4),
        "hidden": heads * head_dim,
        "ffn": rng.choice((13, 16, 24)),
        "num_heads": heads,
        "num_kv_heads": kv,
        "head_dim": head_dim,
        "vocab": rng.choice((31, 40)),
        "seq_len": 8,
        "max_positions": 0 if family == "llama" else 8,
        "tied_embeddings": rng.random() < 0.5,
        "gated_mlp": family == "llama",
        "biases": family != "llama",
        "norm": "rmsnorm" if family == "llama" else "layernorm",
    }
    return ModelSpec.model_validate({**fields, **changes})


def small_plan(
    rng: random.Random, spec: ModelSpec, *, max_ranks: int = 6, max_tp: int = 4, min_ranks: int = 1
) -> Plan:
    """Return a plan with uneven stages, mixed tp and unequal microbatches on few ranks."""
    while True:
        schedule = rng.choice(("1f1b", "1f1b", "gpipe", *("interleaved",) * 4))
        vpp = rng.choice((2, 2, 3)) if schedule == "interleaved" else 1
        pp = rng.randint(2 if vpp > 1 else 1, 3)
        if pp * vpp > spec.num_units:
            continue
        dp = rng.randint(1, 3)
        edges = sorted(rng.sample(range(1, spec.num_units), pp * vpp - 1))
        batches = [(rng.randint(1, 3), rng.randint(1, 4)) for _ in range(dp)]
        if vpp > 1:  # counts are multiples of the pipeline's ranks
            batches = [(size, pp * rng.randint(1, 2)) for size, _ in batches]
        degrees = [[rng.randint(1, max_tp) for _ in range(dp)] for _ in range(pp)]
        if min_ranks <= sum(map(sum, degrees)) <= max_ranks:
            break
    stages = [
        Stage(
            start=start,
            stop=stop,
            replicas=tuple(
                replica(tp, microbatch, count)
                for tp, (microbatch, count) in zip(row, batches, strict=True)
            ),
        )
        for start, stop, row in zip(
            [0, *edges], [*edges, spec.num_units], degrees * vpp, strict=True
        )
    ]
    return Plan(
        model=spec.name,
        num_units=spec.num_units,
        global_batch=sum(a * b for a, b in batches),
        schedule=schedule,
        vpp=vpp,
        stages=tuple(stages),
    )


def replica(tp: int, microbatch: int, num_microbatches: int) -> Replica:
    """Return a replica on a node that doesn't matter."""
    return Replica(
        gpu="cpu", node_type="local", zone="here",
        tp=tp, microbatch=microbatch, num_microbatches=num_microbatches,
    )  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    return small_model(draw(st.randoms(use_true_random=False)))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[ModelSpec, Plan]:
    rng = draw(st.randoms(use_true_random=False))
    spec = small_model(rng)
    return spec, small_plan(rng, spec, max_ranks=16)


@st.composite
def two_plans(draw: st.DrawFn) -> tuple[ModelSpec, Plan, Plan, list[int | None]]:
    rng = draw(st.randoms(use_true_random=False))
    spec = small_model(rng)
    old = small_plan(rng, spec, max_ranks=12)
    new = small_plan(rng, spec, max_ranks=12)
    was: list[int | None] = [*range(old.num_gpus), *([None] * new.num_gpus)]
    rng.shuffle(was)
    return spec, old, new, was[: new.num_gpus]
