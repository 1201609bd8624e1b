"""Constants and functions of the `sailor` model: broken, a hand-made sum is missed.

As tests/sim/test_terms_matter.py, for what the tables are made from and what is made of them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from pencil_sums import CHECKS

from sailor.sim import closed_form, frameworks, native, native_memory, native_sync
from sailor.sim import estimate as estimate_module
from sailor.sim.closed_form import StageTerms
from sailor.sim.frameworks import FrameworkFacts, FrameworkTimes, StateBytes


def _stage_s(terms: StageTerms) -> Any:
    return terms.compute_s + terms.p2p_s


# (module, name, value, the check that misses it).
BROKEN_CODE: dict[str, tuple[Any, str, Any, str]] = {
    "flat copy": (native_memory, "_FLAT_COPY_BYTES", 0.0, "measured"),
    "copies of the logits": (native_memory, "_LOGITS_COPIES", 2.0, "measured"),
    "spread of campaigns": (native_memory, "_CAMPAIGN_SPREAD_BYTES", 0.0, "measured"),
    "margin of measured layers": (native_memory, "_MEASURED_MARGIN", 0.0, "measured"),
    "score matrices": (native_memory, "_SCORE_MATRICES", 2.0, "measured"),
    "kept scores": (native_memory, "_unfused_scores", lambda *_: 0.0, "eager"),
    "scores kept under recomputation": (
        native_memory, "_unfused_scores", lambda *_: 1e6, "recomputed",
    ),
    "transport buffer": (native, "_TRANSPORT_BUFFER_BYTES", 8.0 * 2**20, "measured"),
    "everybody waits": (native, "_BLOCKING", ("megatron-lm",), "modelled"),
    "nobody waits": (native, "_BLOCKING", (), "deepspeed"),
    "bytes that egress is paid for": (native, "_GRADIENT_BYTES", 2.0, "across_zones"),
    "gathering that is not hidden": (native_sync, "EXPOSED_GATHER", 1.0, "sharded"),
    "waiting": (
        closed_form, "_blocked_seconds", lambda tables, batch: np.zeros(batch.kinds.shape),
        "measured",
    ),
    "optimizer step": (
        estimate_module, "update_seconds", lambda tables, batch: np.zeros(len(batch.cuts)),
        "measured",
    ),
    "exchange of a tied table": (
        closed_form, "_tied_seconds", lambda tables, batch: np.zeros(batch.kinds.shape[:2]), "tied",
    ),
    "filling the pipeline": (
        estimate_module, "pipeline_seconds",
        lambda terms: _stage_s(terms).max(axis=1) * terms.num_microbatches, "measured",
    ),
    "steady state": (
        estimate_module, "pipeline_seconds", lambda terms: _stage_s(terms).sum(axis=1), "measured",
    ),
    "one microbatch too many": (
        estimate_module, "pipeline_seconds",
        lambda terms: _stage_s(terms).sum(axis=1)
        + terms.num_microbatches * _stage_s(terms).max(axis=1),
        "measured",
    ),
    "the average stage instead of the slowest": (
        estimate_module, "pipeline_seconds",
        lambda terms: _stage_s(terms).sum(axis=1)
        + (terms.num_microbatches - 1) * _stage_s(terms).mean(axis=1),
        "measured",
    ),
    "egress of activations": (
        estimate_module, "transfer_dollars", lambda tables, batch: np.zeros(len(batch.cuts)),
        "measured",
    ),
    "egress of the ring": (
        estimate_module, "ring_dollars", lambda tables, batch: np.zeros(len(batch.cuts)),
        "across_zones",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_CODE)
def test_a_broken_constant_or_function_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, attribute, value, check = BROKEN_CODE[name]
    assert hasattr(module, attribute)
    monkeypatch.setattr(module, attribute, value)
    with pytest.raises(AssertionError):
        CHECKS[check]()


# Constants of one framework: the check that misses them 1 % larger (counts and switches: changed).
MEMORY = {
    ("megatron-lm", "base_bytes"): "modelled", ("megatron-lm", "outside_bytes"): "modelled",
    ("megatron-lm", "slack"): "modelled", ("megatron-deepspeed", "state_slack"): "deepspeed",
    ("megatron-lm", "logit_bytes"): "modelled", ("megatron-lm", "bound_moving"): "modelled",
    ("megatron-lm", "bound_states"): "modelled", ("megatron-lm", "bound_bytes"): "modelled",
    ("megatron-lm", "bound_outside"): "modelled",
    ("megatron-lm", "prefetch_blocks"): "fully_sharded",
    ("galvatron", "logit_peak_bytes"): "frameworks",
    ("galvatron", "parallel_buffers"): "frameworks",
}  # fmt: skip
TIMES = {
    ("megatron-lm", "microbatch_s"): "modelled", ("megatron-lm", "step_s"): "modelled",
    ("megatron-lm", "step_block_s"): "modelled", ("megatron-lm", "grad_sync_bytes"): "modelled",
    ("megatron-lm", "grad_overlap"): "sharded", ("internevo", "always_overlaps"): "frameworks",
    ("megatron-lm", "accumulate_bytes"): "eager",
    ("megatron-lm", "accumulate_bf16_bytes"): "modelled",
    ("megatron-lm", "gather_power"): "fully_sharded",
    ("megatron-deepspeed", "gather_share"): "fully_sharded",
    ("megatron-deepspeed", "gather_rank_s"): "fully_sharded",
    ("internevo", "shard_rank_s"): "frameworks",
}  # fmt: skip
# These are in layer profiles already: tests/sources/test_analytic.py works them out.
OF_PROFILES = {
    "launch_s", "launch_parallel_s", "launch_tp_s", "launch_experts_s", "launch_back",
    "tp_overlap", "optimizer_bytes",
}  # fmt: skip


def test_every_constant_of_a_framework_is_broken() -> None:
    memory, times = ({name for _, name in known} for known in (MEMORY, TIMES))
    assert {field.name for field in fields(FrameworkFacts)} - {"name", "source"} == memory
    assert {field.name for field in fields(FrameworkTimes)} - {"name", "source"} == (
        times | OF_PROFILES
    )


@pytest.mark.parametrize(("framework", "name"), [*MEMORY, *TIMES])
def test_a_broken_constant_of_a_framework_is_noticed(
    framework: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, check = (
        ("_MEMORY", MEMORY[framework, name])
        if (framework, name) in MEMORY
        else ("_TIMES", TIMES[framework, name])
    )
    known = getattr(frameworks, table)
    old = getattr(known[framework], name)
    new = not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else 1.01 * old
    broken = replace(known[framework], **{name: new})
    monkeypatch.setattr(frameworks, table, {**known, framework: broken})
    with pytest.raises(AssertionError):
        CHECKS[check]()


@pytest.mark.parametrize(
    ("part", "check"),
    [("weights", "modelled"), ("grads", "modelled"), ("master", "modelled"),
     ("moments", "measured"), ("weights_stage", "fully_sharded"), ("grads_stage", "sharded")],
)  # fmt: skip
def test_broken_bytes_of_a_state_are_noticed(
    part: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = frameworks.state_bytes

    def broken(execution: Any) -> StateBytes:
        own = whole(execution)
        old = getattr(own, part)
        return replace(own, **{part: old + 1 if isinstance(old, int) else 1.01 * old})

    monkeypatch.setattr(native_memory, "state_bytes", broken)
    with pytest.raises(AssertionError):
        CHECKS[check]()
