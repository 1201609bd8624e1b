"""Links as arrays against links one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.api import build_problem
from sailor.model.hardware import BandwidthCurve, Link, Market
from sailor.sim.kinds import WorkerKind
from sailor.sim.network import LinkIndex, link_table, with_shared_cards

ROOT = Path(__file__).resolve().parents[2]
KINDS = [
    WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-1g", 1),
    WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-4g", 4),
    WorkerKind("V100-16GB", "us-central1-a", Market.ON_DEMAND, "n1-v100-2", 2),
]


@given(size=st.floats(1.0, 1e11))
def test_array_and_record_agree(size: float) -> None:
    problem = build_problem(ROOT / "examples" / "jobs" / "opt-350m-a100-v100.yaml")
    table, index = link_table(problem, KINDS), LinkIndex(problem.links)
    for i, src in enumerate(KINDS):
        for j, dst in enumerate(KINDS):
            link = index.find(src, dst, src.tp, dst.tp)
            assert link is not None
            one = float(table.transfer_s(np.array(size), np.array(i), np.array(j)))
            assert one == pytest.approx(link.transfer_s(size), rel=1e-12)
            assert one >= link.latency_s


def test_a_curve_is_clamped_to_what_was_measured() -> None:
    """The fit 1 + x GB/s (x = log2 MB) is negative below half a megabyte."""
    curve = BandwidthCurve(
        coefficients=(0.0, 1.0, 1.0), min_bytes=1e6, max_bytes=8e6, peak_bytes_per_s=3e9
    )
    link = Link(src="a", dst="b", latency_s=1e-3, curve=curve, source="test")
    assert link.transfer_s(1e6) == pytest.approx(1e-3 + 1e6 / 1e9)
    assert link.transfer_s(2e6) == pytest.approx(1e-3 + 2e6 / 2e9)
    assert link.transfer_s(1e3) == pytest.approx(1e-3 + 1e3 / 1e9)  # below the range: its end
    assert link.transfer_s(8e9) == pytest.approx(1e-3 + 8e9 / 3e9)  # the peak bounds the fit
    assert link.transfer_s(0) == 0.0


def test_the_most_specific_link_is_found() -> None:
    def link(rate: float, **narrow: object) -> Link:
        return Link.model_validate(
            {"src": "us-central1-a", "dst": "us-central1-a", "latency_s": 0.0,
             "bandwidth": rate, "source": "test", **narrow}
        )  # fmt: skip

    general = link(1.0)
    by_gpu = link(2.0, src_gpu="A100-40GB", dst_gpu="A100-40GB")
    exact = link(3.0, src_gpu="A100-40GB", dst_gpu="A100-40GB", src_workers=4, dst_workers=1)
    index = LinkIndex([general, by_gpu, exact])
    one, four, other = KINDS
    assert index.find(four, one, 4, 1) is exact
    assert index.find(one, one, 1, 1) is by_gpu
    assert index.find(one, other, 1, 2) is general
    assert LinkIndex([exact]).find(one, one, 1, 1) is None


def test_replicas_that_share_a_node_share_its_card() -> None:
    problem = build_problem(ROOT / "examples" / "jobs" / "opt-350m-a100-v100.yaml")
    alone = WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-1g", 1)
    among = WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-8g", 1)
    table = link_table(problem, [alone, among])
    shared = with_shared_cards(problem, [alone, among], table)
    card = problem.node("a2-highgpu-8g").nic_bandwidth
    assert shared.peak[0, 0] == table.peak[0, 0]
    assert shared.peak[0, 1] == shared.peak[1, 1] == pytest.approx(min(card / 8, table.peak[1, 1]))
