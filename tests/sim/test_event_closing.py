"""The end of an iteration in the event engine, and its memory: reductions, copies, platforms."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from event_problem import ARCH, MIB, both, parts, plan, problem, training

from sailor.errors import InputError
from sailor.model.hardware import BandwidthCurve, Link
from sailor.model.profile import Provenance
from sailor.sim.event_costs import num_tensors
from sailor.sim.event_estimate import event_time
from sailor.sim.platforms import PLATFORMS, platform_of


def test_megatron_lm_flattens_nothing_and_waits_for_no_neighbour() -> None:
    cut = plan((3, [("fast-4", 4)] * 2), (3, [("fast-4", 4)] * 2))
    deepspeed = event_time(problem(), cut)
    lm = event_time(problem(training=training("megatron-lm")), cut)
    assert (deepspeed.schedule, lm.schedule) == ("1f1b_deepspeed", "1f1b")
    # 2 + 2 x 12 tensors of 31 us, six passes of 0.5 MB a rank's 500,000 parameters.
    assert deepspeed.local_s == pytest.approx(26 * 31e-6 + 6 * 4 * 500_000 / 1e11)
    assert lm.local_s == 0
    assert lm.allreduce_s == deepspeed.allreduce_s
    assert lm.pipeline_s < deepspeed.pipeline_s


def test_all_ranks_of_a_node_share_its_links_in_the_all_reduce() -> None:
    """tp 4: 3.9 MB of gradients a rank, 15.6 MB a node, each way once for two replicas."""
    found = event_time(problem(), plan((6, [("fast-4", 4)] * 2)), platforms=both())
    steps, chunk = 2, 15.6e6 / 2
    assert found.allreduce_s == pytest.approx(steps * (chunk / 1e9 + 1e-3))
    four = event_time(problem(), plan((6, [("fast-4", 4)] * 4)), platforms=both())
    assert four.allreduce_s == pytest.approx(6 * (15.6e6 / 4 / 1e9 + 1e-3))


def test_the_ring_closes() -> None:
    """fast, fast, slow: the hop from the last back to the first counts as well."""
    ring = plan((6, [("fast-4", 2), ("fast-4", 2), ("slow-2", 2)]))
    even = event_time(problem(), ring, platforms=both())
    back = Link(
        src="z", dst="z", src_gpu="slow", dst_gpu="fast", latency_s=1e-3, bandwidth=1e8,
        source="test",
    )  # fmt: skip
    slow = event_time(problem(links=(*problem().links, back)), ring, platforms=both())
    # 1.95 M parameters a rank: 15.6 MB a node, a third of it four times, over half of 0.1 GB/s.
    # Two of the three share a node: 15 us for each doubling of the ranks.
    steps_s = 15e-6 * math.log2(3)
    assert slow.allreduce_s == pytest.approx(4 * (15.6e6 / 3 / 0.5e8 + 1e-3) + steps_s)
    # Without that link the hops between the nodes have half of 2 GB/s, as much as the card.
    assert even.allreduce_s == pytest.approx(4 * (15.6e6 / 3 / 1e9 + 1e-3) + steps_s)
    assert even.allreduce_s < slow.allreduce_s / 5


def test_replicas_of_one_node_reduce_over_its_links() -> None:
    """Two of tp 4 on a node of 8: 3.9 MB a rank at 0.8 of 10 GB/s, once around, and 15 us."""
    found = event_time(problem(), plan((6, [("fast-8", 4)] * 2)), platforms=both())
    assert found.allreduce_s == pytest.approx(3.9e6 / 8e9 + 15e-6)
    # Three of tp 2 in two stages: nodes of 8 hold 3 + 1 and 2, so that the second ring crosses.
    three = [("fast-8", 2)] * 3
    two, crossed = event_time(problem(), plan((3, three), (3, three)), platforms=both()).stages
    # 4 MB of gradients a rank on the node; 3.8 MB, both ranks together over half of 2 GB/s.
    steps_s = 15e-6 * math.log2(3)
    assert two.allreduce_s == pytest.approx(4 * (4e6 / 3 / 8e9) + steps_s)
    assert crossed.allreduce_s == pytest.approx(4 * (2 * 3.8e6 / 3 / 1e9 + 1e-3) + steps_s)


def test_the_curve_is_read_at_the_message_of_one_pair() -> None:
    """Bandwidth that grows with the size: 1 GB/s at 1 MB, 1 more for every doubling."""
    curve = BandwidthCurve(coefficients=(0, 1.0, 1.0), min_bytes=1e6, peak_bytes_per_s=1e11)
    link = Link(src="z", dst="z", latency_s=0, curve=curve, source="test")
    found = event_time(
        problem(links=(link,)), plan((6, [("fast-4", 4)] * 2)),
        platforms=both(link_efficiency=1.0),
    )  # fmt: skip
    rate = (1 + math.log2(3.9 / 2)) * 1e9
    assert found.allreduce_s == pytest.approx(2 * 7.8e6 / rate)


def test_waiting_for_a_slow_replica_is_told_apart_from_the_all_reduce() -> None:
    found = event_time(problem(), plan((6, [("fast-4", 2), ("slow-2", 2)])), platforms=both())
    assert found.compute_s == pytest.approx(4 * 272e-3)
    assert [p.waiting_s for p in found.pipelines] == [pytest.approx(4 * 136e-3), 0]
    assert found.waiting_s == pytest.approx(4 * 136e-3)
    own = found.allreduce_s + found.local_s
    assert found.reduction_s(0, 0) == pytest.approx(4 * 136e-3 + own)
    assert found.reduction_s(1, 0) == pytest.approx(own)
    assert found.total_s == pytest.approx(parts(found))
    with pytest.raises(InputError, match="no stage 0 of pipeline 2"):
        found.reduction_s(2, 0)


def test_stages_close_the_iteration_together() -> None:
    cut = plan((2, [("fast-4", 4)] * 2), (4, [("fast-4", 4)] * 2))
    found = event_time(problem(), cut, platforms=both())
    for stage in (0, 1):
        mine = [closing for closing in found.closings() if closing.stage == stage]
        assert [closing.name for closing in mine] == ["all-reduce", "copy gradients", "optimizer"]
        assert mine[0].start_s == found.pipeline_s
        for before, after in pairwise(mine):
            assert after.start_s >= before.stop_s
    assert max(closing.stop_s for closing in found.closings()) == pytest.approx(found.total_s)


def test_memory_by_parts() -> None:
    """20 B a parameter, min(M, P - i) microbatches, three score matrices or logits, base."""
    cut = plan((3, [("fast-4", 2)]), (3, [("fast-4", 2)]), microbatch=2)
    first, last = event_time(problem(), cut, platforms=both()).memory
    params = 1_000_000
    assert first.parameters_bytes == first.gradients_bytes == 4 * params
    assert first.optimizer_bytes == 8 * params
    # The flat copy for the all-reduce, and one boundary tensor of two samples.
    assert first.communication_bytes == 4 * params + 4 * MIB
    assert first.in_flight == 2
    assert first.activations_bytes == 2 * 2 * 41 * MIB
    # Four heads over two ranks, 512 x 512 fp32 scores of two samples, three times.
    assert first.transient_bytes == 3 * 2 * 2 * 512 * 512 * 4
    assert first.reserve_bytes == 10**9
    assert last.in_flight == 1
    assert last.activations_bytes == 2 * 44 * MIB
    # Logits: 4 MiB over two ranks, two samples, three times - as much as the scores here.
    assert last.transient_bytes == 12 * MIB
    for worker in (first, last):
        assert worker.total_bytes == (
            worker.parameters_bytes + worker.gradients_bytes + worker.optimizer_bytes
            + worker.communication_bytes + worker.activations_bytes + worker.transient_bytes
            + worker.reserve_bytes
        )  # fmt: skip
    assert event_time(problem(), plan((6, [("fast-4", 2)]), counts=[1])).memory[0].in_flight == 1


def test_fused_attention_has_no_score_matrices() -> None:
    fused = tuple(
        f.model_copy(update={"provenance": Provenance.MODELLED}) for f in problem().footprints
    )
    cut = plan((3, [("fast-4", 2)]), (3, [("fast-4", 2)]))
    first, last = event_time(problem(footprints=fused), cut, platforms=both()).memory
    # 512 tokens in fp32: two gradients of 256 columns, 512 + 512 of the feed-forward part.
    assert first.transient_bytes == 512 * 4 * (2 * 256 + 512 + 512)
    # Logits and softmax, 8 bytes of a rank's 512 rows, two inputs: kept, and gone by then.
    assert last.activations_bytes == 2 * 20 * MIB + 512 * (8 * 512 + 2 * 4 * 256)
    assert last.transient_bytes == 0


def test_tensors_of_a_unit() -> None:
    assert num_tensors(ARCH, "embedding") == 2
    assert num_tensors(ARCH, "block") == 12
    assert num_tensors(ARCH, "head") == 3
    llama = ARCH.model_copy(update={"biases": False, "norm": "rmsnorm", "max_positions": 0})
    assert [num_tensors(llama, kind) for kind in ("embedding", "block", "head")] == [1, 6, 2]


def test_platforms_say_what_they_assume() -> None:
    measured = PLATFORMS["megatron-deepspeed", "GH200-96GB"]
    assert measured.assumptions() == ()
    assert measured.link_efficiency.value == 0.63
    unknown = platform_of("H100-80GB")
    names = [text.split()[1] for text in unknown.assumptions()]
    assert names == [
        "link_efficiency", "host_s_per_message", "hook_s_per_pass", "launch_s_per_tensor",
        "base_memory_bytes",
    ]  # fmt: skip
    found = event_time(problem(), plan((6, [("fast-4", 4)])))
    assert found.assumptions[0].startswith("fast: link_efficiency 1 assumed (not measured")
    # Under another framework the card is the same, the order of waits is that framework's.
    other = platform_of("GH200-96GB", "megatron-lm")
    assert (other.framework, other.schedule) == ("megatron-lm", "1f1b")
    assert other.link_efficiency == measured.link_efficiency
    assert platform_of("H100-80GB", "galvatron").schedule == "1f1b"
    assert measured.schedule == unknown.schedule == "1f1b_deepspeed"
