"""Sums worked out by hand, term by term, for the problem of `pencil`.

Times in ms. Stages hold units [0, 2) embedding and a block, [2, 3) and [3, 4) a block each,
[4, 6) a block and the head; of a rank's parameters 40, 80 (a block) and 30 millions.
"""

from __future__ import annotations

from collections.abc import Callable

from pencil import EXPERTS, GIB, MODELLED, RATE, TIED, Run, bytes_are, near, problem, run

from sailor.model.cluster import Cluster

MS = 1e-3
# Of a block on one of two ranks, 512 tokens of 256: two gradients of hidden width and those of the
# feed-forward part, 1024 / 2 columns there and back.
PEAK = 4 * 512 * 256 + 2 * 512 * (512 + 512)
LOG2_OF_3 = 1.584962500721156
ONE = Run("a", (0, 6), 4, 3)  # one stage, four replicas


def mixed(device_ms: float, host_ms: float) -> float:
    """Return what a stage takes whose device and host are busy so long."""
    return float((device_ms**4 + host_ms**4) ** 0.25)


def accumulated(millions: float, bytes_each: float = 4.0) -> float:
    """Return the ms of adding gradients up: bytes a parameter over the card's reached rate."""
    return millions * 1e6 * bytes_each / RATE / MS


def check_measured() -> None:
    """Compare with hand figures: fp32, ZeRO-1 over three replicas, measured under DeepSpeed."""
    found = run(problem(precision="fp32", zero=1, framework="megatron-deepspeed"))
    # Layers: 3 + 31, 30, 30, 30 + 15. A message is 10 MB: 1 + 5 a to b, 2 + 10 b to a; its 5 MB a
    # pair of GPUs is more than 4 MiB, so inner stages wait for what comes in as well.
    for stage, (layers, transfers) in zip(
        found.stages, ((34, 2 * 6), (30, 12 + 12 + 6 + 6), (30, 6 + 6 + 12 + 12), (45, 2 * 12)),
        strict=True,
    ):  # fmt: skip
        near(stage.compute_s, layers * MS)
        near(stage.p2p_s, transfers * MS)
    # Stages of 46, 66, 66, 69 ms: their sum once and the slowest twice more.
    pipeline = (46 + 66 + 66 + 69 + 2 * 69) * MS
    # 240 M parameters of stage 0 in fp32 over 3 replicas: 4 steps of 320 MB at 2 GB/s and 1 ms.
    # ZeRO-1 scatters gradients and gathers weights: the same bytes.
    sync = 4 * (160 + 1) * MS
    for stage, parameters in zip(found.stages, (240, 160, 160, 220), strict=True):
        near(stage.dp_sync_s, 4 * (parameters * 4 / 3 / 2 + 1) * MS)
    # 40 ps a parameter of 120 M, over three replicas.
    update = 4.8 / 3 * MS
    near(found.time.dp_sync_s, sync)
    near(found.time.update_s, update)
    near(found.time.compute_s, 3 * 45 * MS)
    near(found.time.p2p_s, 3 * 24 * MS)
    near(found.time.bubble_s, (46 + 66 + 66) * MS)
    near(found.time.total_s, pipeline + sync + update)
    # Three pipelines, three microbatches, three boundaries, 10 MB there (1e-8) and back (2e-8).
    near(found.cost[1].usd_per_iteration, 3 * 3 * 3 * 10e6 * 3e-8)
    # Six nodes at 3 and six at 5 dollars an hour.
    near(found.cost[0].usd_per_iteration, 48 / 3600 * (pipeline + sync + update))

    scores_bytes = 3 * (4 / 2) * 512**2 * 4
    # Parameters in millions, kept of one sample in MB, in flight (never more than the three that
    # there are), for a moment: scores, or three copies of a rank's 50 MB of logits.
    wanted = (
        (120, 20 + 400, 3, scores_bytes), (80, 400, 3, scores_bytes), (80, 400, 2, scores_bytes),
        (110, 400 + 60, 1, 150e6),
    )  # fmt: skip
    for worker, (millions, kept, in_flight, transient) in zip(found.memory, wanted, strict=True):
        params, boundary = millions * 1e6, 10e6
        assert worker.in_flight == in_flight
        states, moving = (12 + 8 / 3) * params, in_flight * kept * 1e6 + transient
        total = states + moving + boundary + 3e9
        bytes_are(
            worker, parameters=4 * params, gradients=4 * params, optimizer=8 * params / 3,
            communication=4 * params + boundary, activations=in_flight * kept * 1e6,
            transient=transient, reserve=3e9, total=total,
            # 5 % of what was measured, 0.8 GB between campaigns, 1 GB for a context not measured.
            bound=total + 0.05 * (states + moving) + 1.8e9, capacity=10e9,
        )  # fmt: skip


def check_modelled() -> None:
    """Compare with hand figures: bf16 under Megatron-LM, layers from shapes."""
    found = run(problem(MODELLED))
    # Device: layers, and 4 bytes a parameter to add the gradients up; hosts launch a block in
    # 25 ms; 2.5 ms a microbatch on every stage. Sends as measured, but nobody waits for others.
    stages = []
    for stage, (layers, millions, transfers) in zip(
        found.stages, ((34, 120, 12), (30, 80, 24), (30, 80, 12), (45, 110, 24)), strict=True
    ):
        busy = mixed(layers + accumulated(millions), 25) + 2.5
        near(stage.compute_s, busy * MS)
        near(stage.p2p_s, transfers * MS)
        near(stage.dp_sync_s, 4 * (2 * millions * 4 / 3 / 2 + 1) * MS)  # 4 bytes on the wire
        stages.append(busy + transfers)
    # 8 ms of a step, 0.19 ms a block, 40 ps a parameter.
    update = 8 + 0.19 + 4.8
    near(found.time.update_s, update * MS)
    sync = 4 * (160 + 1)
    near(found.time.total_s, (sum(stages) + 2 * max(stages) + sync + update) * MS)

    # Logits: 2 bytes and 4 of their softmax, 512 tokens, 512 of 1024 rows; two inputs of 16-bit.
    # They are gone when the block's backward pass needs its own.
    logits = 6 * 512 * 512 + 4 * 512 * 256
    wanted = ((120, 420e6, 3, PEAK), (80, 400e6, 3, PEAK), (80, 400e6, 2, PEAK),
              (110, 400e6 + logits, 1, 0))  # fmt: skip
    assert logits > PEAK
    for worker, (millions, kept, in_flight, transient) in zip(found.memory, wanted, strict=True):
        params = millions * 1e6
        assert worker.in_flight == in_flight
        states, moving = 18 * params, in_flight * kept + transient
        # Libraries 0.066 GiB, context 3 GB, a tenth of what moves lies idle in the allocator.
        reserve = 0.066 * GIB + 3e9 + 0.10 * moving
        bytes_are(
            # 2 of weights, 4 of gradients, 4 of the master copy and 8 of moments.
            worker, parameters=2 * params, gradients=4 * params, optimizer=12 * params,
            communication=0, activations=in_flight * kept, transient=transient, reserve=reserve,
            total=states + moving + reserve,
            bound=states + moving + reserve + 0.06 * states + 0.08 * moving + 0.25 * GIB + 1e9,
        )  # fmt: skip


def check_eager() -> None:
    """Compare with hand figures: fp16 on a card without fused attention."""
    found = run(problem(MODELLED, bf16=False, precision="fp16"))
    first = found.memory[0]
    # Megatron-LM moves 2.9 bytes a parameter to add gradients up where they aren't those of bf16.
    near(found.stages[0].compute_s, (mixed(34 + accumulated(120, 2.9), 25) + 2.5) * MS)
    # A score is kept in 2 bytes, dropped out in 2, masked in 1; flash keeps 4 bytes a row instead.
    bytes_are(
        first, parameters=2 * 120e6, gradients=4 * 120e6, optimizer=12 * 120e6,
        activations=3 * (420e6 + 2 * (5 * 512**2 - 4 * 512)),
        transient=PEAK + 4 * 2 * 512**2,  # gradients of two heads' scores and their softmax
    )  # fmt: skip


def check_recomputed() -> None:
    """Compare with hand figures: as above, blocks computed again; one of them is there whole."""
    first = run(problem(MODELLED, bf16=False, precision="fp16", recompute="full")).memory[0]
    # Of 512 tokens: inputs 8 h, keys and values and queries and output 8 h / 2, feed-forward
    # 4 x 4 h / 2, masks 2 h; then 5 bytes a score of two heads.
    block = 512 * 256 * (8 + 4 + 8 + 2) + 5 * 2 * 512**2
    bytes_are(
        first, activations=3 * 420e6,  # no scores; the blocks' figures are the footprint's
        transient=PEAK + 4 * 2 * 512**2 + block,
    )  # fmt: skip


def check_sharded() -> None:
    """Compare with hand figures: ZeRO-1 and 2 over the four replicas of a node of 8 GPUs."""
    for zero, gradients in ((1, 4 * 390e6), (2, 390e6)):
        found = run(problem(MODELLED, num_gpus=8, zero=zero), ONE)
        (worker,) = found.memory
        bytes_are(worker, parameters=2 * 390e6, gradients=gradients, optimizer=12 * 390e6 / 4)
        # Of a rank's 390 M parameters: half of an all-reduce of 4 bytes and half of one of 2, 3 in
        # all, 2 x 3/4 of them at 0.8 of 10 GB/s, two doublings of 15 us.
        near(found.time.dp_sync_s, 2 * 0.75 * 3 * 390e6 / 8e9 + 2 * 15e-6)
        near(found.time.update_s, (8 + 4 * 0.19 + 15.6 / 4) * MS)
    # Groups of two: gradients are reduced over all four, 16-bit weights gathered from one other.
    gather = 0.5 * 2 * 390e6 / 8e9 + 15e-6
    found = run(problem(MODELLED, num_gpus=8, zero=1, zero_group=2), ONE)
    bytes_are(found.memory[0], optimizer=12 * 390e6 / 2)
    near(found.time.dp_sync_s, 2 * 0.75 * 4 * 390e6 / 8e9 + 2 * 15e-6 + gather)
    near(found.time.update_s, (8 + 4 * 0.19 + 15.6 / 2) * MS)
    # On nodes of two GPUs: six steps of a quarter of 4 bytes, two of half of 1, at 2 GB/s.
    found = run(problem(MODELLED, zero=1, zero_group=2), ONE)
    near(found.time.dp_sync_s, 6 * (780e6 * 4 / 4 / 2e9 + MS) + 2 * (780e6 / 2 / 2e9 + MS))
    # Hidden: 0.8 of the gradients' half, 0.8 of the weights'.
    hidden = run(problem(MODELLED, num_gpus=8, zero=1, overlap_grads=True, overlap_params=True),
                 ONE)  # fmt: skip
    near(hidden.time.dp_sync_s, 2 * 0.75 * (0.2 * 2 + 0.2 * 1) * 390e6 / 8e9 + 2 * 15e-6)


def check_fully_sharded() -> None:
    """Compare with hand figures: ZeRO-3 in one node of 8 GPUs, and over nodes of 2."""
    whole = problem(MODELLED, num_gpus=8, zero=3)
    found = run(whole, ONE)
    # Layers 3 + 31 + 90 + 15, hosts 4 x 25; gradients are scattered, not added up.
    busy = mixed(139, 100)
    once = (0.75 * 2 * 390e6 / 8e9 + 2 * 15e-6) / MS
    near(found.stages[0].compute_s, ((busy**2 + (3 * once) ** 2) ** 0.5 + 2.5) * MS)
    kept = run(problem(MODELLED, num_gpus=8, zero=3, keep_gathered=True), ONE)
    near(kept.stages[0].compute_s, ((busy**2 + (2 * once) ** 2) ** 0.5 + 2.5) * MS)
    assert found.time.dp_sync_s == 0
    near(found.time.update_s, (8 + 4 * 0.19 + 15.6 / 4) * MS)
    # A block by its shapes on one of two ranks: 4 x 256 x 128 + 640 of attention, 2 x 256 x 512 +
    # 768 of the feed-forward part, two norms of 512; three of them in 16-bit at once.
    gathered = 3 * 2 * (131072 + 640 + 262144 + 768 + 1024)
    logits, table = 6 * 512 * 512 + 4 * 512 * 256, 2 * 512 * 256
    states, transient = 18 / 4 * 390e6, PEAK + gathered - logits
    moving = 20e6 + 4 * 400e6 + logits + transient
    total = states + table + moving + 0.066 * GIB + 3e9 + 0.10 * moving
    bytes_are(
        found.memory[0], parameters=2 * 390e6 / 4, gradients=390e6, optimizer=12 * 390e6 / 4,
        communication=table, transient=transient, total=total,
        bound=total + table + gathered + 0.06 * states + 0.08 * moving + 0.25 * GIB + 1e9,
    )  # fmt: skip

    # DeepSpeed hides nothing, reaches a quarter of the bandwidth, and takes 61 us a block and
    # rank. Two ranks of a node gather over its card, 0.8 of 1 GB/s, in two doublings of 60 us.
    across = run(problem(MODELLED, zero=3, framework="megatron-deepspeed"), ONE)
    once = (0.75 * 2 * 390e6 / 0.25 * 2 / 0.8e9 + 2 * 60e-6 + 4 * 3 * 61e-6) / MS
    near(across.stages[0].compute_s, (busy + 3 * once + 1.25) * MS)
    near(across.time.update_s, (1 + 15.6 / 4) * MS)
    # Context parallelism makes it six ranks of three replicas; groups of 2 leave it two.
    three_nodes = 5 / 6 * 2 * 390e6 * 2 / 0.8e9 + 60e-6 * LOG2_OF_3
    one_node = 1 / 2 * 2 * 390e6 / 8e9 + 15e-6
    for group, gather_s in ((None, three_nodes), (2, one_node)):
        split = problem(MODELLED, num_gpus=4, zero=3, cp=2, zero_group=group, keep_gathered=True)
        found, once = run(split, Run("a", (0, 6), 3, 3)), gather_s / MS
        near(found.stages[0].compute_s, ((busy**2 + (2 * once) ** 2) ** 0.5 + 2.5) * MS)


def check_deepspeed() -> None:
    """Compare with hand figures: modelled layers under DeepSpeed."""
    found = run(problem(MODELLED, framework="megatron-deepspeed"))
    first = found.memory[0]
    moving, states = 3 * 420e6 + PEAK, 20 * 120e6
    # bf16 gradients are kept in fp32 too. A fifth of what moves and 6 % of states lie idle.
    reserve = 0.066 * GIB + 4e9 + 0.20 * moving + 0.06 * states
    total = states + moving + reserve
    bytes_are(
        first, parameters=2 * 120e6, gradients=6 * 120e6, optimizer=12 * 120e6, reserve=reserve,
        total=total, bound=total + 0.10 * states + 0.15 * moving + 0.20 * GIB + 2.5e9,
    )  # fmt: skip
    near(found.stages[0].compute_s, (mixed(34 + accumulated(120, 12.4), 25) + 1.25) * MS)
    near(found.stages[1].p2p_s, (12 + 12 + 6 + 6) * MS)  # inner stages wait
    near(found.time.dp_sync_s, 4 * (240 * 2 / 3 / 2 + 1) * MS)  # 2 bytes on the wire
    near(found.time.update_s, (1 + 4.8) * MS)


def check_experts() -> None:
    """Compare with hand figures: two of four experts on a rank, ZeRO-1 over four replicas."""
    found = run(problem(MODELLED, arch=EXPERTS, ep=2, zero=1), ONE)
    routed = 4 * 2 * 2**23  # of four blocks, on one of two tensor-parallel ranks
    dense = 390e6 - routed
    # Four replicas hold a dense parameter, two of them an expert.
    bytes_are(
        found.memory[0], parameters=2 * 390e6, gradients=4 * 390e6,
        optimizer=12 * (dense / 4 + routed / 2),
    )  # fmt: skip
    near(found.time.update_s, (8 + 4 * 0.19) * MS + 4e-11 * (dense / 4 + routed / 2))
    # 3 bytes a parameter (see above) of both ranks: dense ones in six steps over four replicas,
    # experts in two over two.
    steps = 6 * (2 * dense * 3 / 4 / 2e9 + MS) + 2 * (2 * routed * 3 / 2 / 2e9 + MS)
    near(found.time.dp_sync_s, steps)
    # On nodes of four GPUs the two replicas beside each other have other experts: two rings.
    found = run(problem(MODELLED, arch=EXPERTS, num_gpus=4, ep=2, zero=1), ONE)
    steps = 6 * (2 * dense * 3 / 4 / 2e9 + MS) + 2 * (2 * 2 * routed * 3 / 2 / 2e9 + MS)
    near(found.time.dp_sync_s, steps)


def check_whole_experts() -> None:
    """Compare with hand figures: tp 2 cuts no expert, and a rank has one of four."""
    found = run(problem(MODELLED, arch=EXPERTS, ep=4, expert_tp=1, zero=1), ONE)
    routed = 4 * 2**24
    dense = 390e6 - routed
    # Eight ranks for four experts: two ranks hold the same one.
    bytes_are(found.memory[0], optimizer=12 * (dense / 4 + routed / 2))
    near(found.time.update_s, (8 + 4 * 0.19) * MS + 4e-11 * (dense / 4 + routed / 2))
    # Both ranks of a node send their own expert's 3 bytes a parameter.
    steps = 6 * ((780e6 - routed) * 3 / 4 / 2e9 + MS) + 2 * (2 * routed * 3 / 2 / 2e9 + MS)
    near(found.time.dp_sync_s, steps)


def check_context() -> None:
    """Compare with hand figures: three replicas of tp 2 x cp 2 on nodes of 4 GPUs, ZeRO-1."""
    found = run(problem(MODELLED, num_gpus=4, cp=2, zero=1), Run("ab", (0, 3, 6), 3, 3))
    # Half of the tokens on each rank: half of what moves; six ranks share the moments.
    logits, peak = 6 * 256 * 512 + 4 * 256 * 256, PEAK // 2
    first, last = found.memory
    bytes_are(first, transient=peak, optimizer=12 * 200e6 / 6)
    bytes_are(last, activations=2 * 400e6 + logits, transient=0, optimizer=12 * 190e6 / 6)
    near(found.time.update_s, (8 + 2 * 0.19 + 8 / 6) * MS)
    # A ring of six ranks: ten steps of a sixth of 400 M x 3 bytes.
    near(found.stages[0].dp_sync_s, 10 * (400e6 * 3 / 6 / 2e9 + MS))
    near(found.stages[1].dp_sync_s, 10 * (380e6 * 3 / 6 / 2e9 + MS))
    # The two halves of a sequence send at once: 0.5 GB/s of the card each.
    near(found.stages[0].p2p_s, 2 * (1 + 20) * MS)
    near(found.stages[1].p2p_s, 2 * (2 + 20) * MS)
    # Three nodes at 3 and three at 5 dollars an hour.
    near(found.cost[0].usd_per_iteration, 24 / 3600 * found.iteration_s)
    # Nine microbatches, two ranks, 10 MB there (1e-8) and back (2e-8).
    near(found.cost[1].usd_per_iteration, 9 * 2 * 10e6 * 3e-8)
    # One replica alone: its two ranks reduce over their node.
    alone = run(problem(MODELLED, num_gpus=4, cp=2), Run("a", (0, 6), 1, 3))
    near(alone.time.dp_sync_s, 4 * 390e6 / 8e9 + 15e-6)


def check_across_zones() -> None:
    """Compare with hand figures: the two replicas of one stage lie in two zones."""
    found = run(problem(MODELLED), Run("a", (0, 6), 1, 3, beside="b"))
    # A ring of two: each of its hops, there (1e-8) and back (2e-8), carries all gradients once.
    near(found.cost[1].usd_per_iteration, 780e6 * 4 * 3e-8)
    near(found.time.dp_sync_s, 2 * (780e6 * 4 / 2 / 2e9 + MS))
    # Of four ranks, two in each zone, the hops between zones carry 2 x 3/4 of them.
    split = run(problem(MODELLED, num_gpus=4, cp=2), Run("a", (0, 6), 1, 3, beside="b"))
    near(split.cost[1].usd_per_iteration, 1.5 * 780e6 * 4 * 3e-8)


def check_tied() -> None:
    """Compare with hand figures: a table of 1024 x 256 on both ends, and once on one stage."""
    found = run(problem(MODELLED, arch=TIED), Run("ab", (0, 3, 6), 3, 3))
    exchange = MS + 4 * 1024 * 256 / 2e9
    for stage, parameters in zip(found.stages, (400e6, 380e6), strict=True):
        near(stage.dp_sync_s, 4 * (parameters * 4 / 3 / 2e9 + MS) + exchange)
    bytes_are(found.memory[0], parameters=2 * 200e6)
    bytes_are(found.memory[1], parameters=2 * 190e6)
    one = run(problem(MODELLED, arch=TIED), ONE)
    params = 390e6 - 512 * 256
    bytes_are(one.memory[0], parameters=2 * params, gradients=4 * params, optimizer=12 * params)
    near(one.time.dp_sync_s, 6 * (2 * params * 4 / 4 / 2e9 + MS))
    near(one.time.update_s, (8 + 4 * 0.19) * MS + 4e-11 * params)


def check_cluster() -> None:
    """Compare with hand figures: a slow host and slow links, four replicas on one node."""
    slow = Cluster(host_factor=2.0, link_share=0.5, link_step_s=1e-4, nic_share=0.4)
    found = run(problem(MODELLED, num_gpus=8, cluster=slow), ONE)
    # A ring of four over the node's own links: 2 x 3/4 of 4 bytes at half of 10 GB/s.
    near(found.time.dp_sync_s, 2 * 3 / 4 * 4 * 390e6 / 5e9 + 2 * 1e-4)
    near(found.time.update_s, (2 * (8 + 4 * 0.19) + 15.6) * MS)
    near(found.stages[0].compute_s, (mixed(139 + accumulated(390), 100) + 2 * 2.5) * MS)
    # Three a stage fill no node of four evenly: the second stage's ring leaves it. Six don't fit.
    for width, parameters in ((3, 380e6), (6, 400e6)):
        found = run(problem(MODELLED, num_gpus=8, cluster=slow), Run("ab", (0, 3, 6), width, 3))
        steps = 2 * (width - 1)
        near(found.time.dp_sync_s, steps * (parameters * 4 / width / 2e9 + MS))
    gather = run(problem(MODELLED, zero=3, cluster=slow), ONE)
    once = (0.75 * 2 * 390e6 * 2 / 0.4e9 + 2 * 60e-6) / MS
    near(gather.stages[0].compute_s, ((mixed(139, 100) ** 2 + (3 * once) ** 2) ** 0.5 + 5) * MS)


def check_frameworks() -> None:
    """Compare with hand figures: what other frameworks keep, wait for and pass on."""
    options = {"framework": "galvatron", "sequence_parallel": True, "fused_norms": False}
    first, last = run(problem(MODELLED, **options), Run("ab", (0, 3, 6), 3, 3)).memory
    # Two buffers of the gathered sequence; separate norms copy what comes in, over two ranks.
    buffers, received = 2 * 2 * 512 * 256, 4 * 512 * 256 / 2
    bytes_are(
        first, parameters=2 * 200e6, gradients=2 * 200e6, optimizer=12 * 200e6,
        activations=2 * (820e6 + received), transient=PEAK,
    )  # fmt: skip
    # A logit keeps 2 + 2 bytes and takes 5.4 more for a moment after the forward pass.
    logits = 4 * 512 * 512 + 4 * 512 * 256 / 2
    moving = 800e6 + received + logits + 5.4 * 512 * 512
    reserve = 20 * 2**20 + 3e9 + buffers + 0.10 * moving
    states = 16 * 190e6
    bytes_are(
        last, activations=800e6 + received + logits, transient=5.4 * 512 * 512, reserve=reserve,
        total=states + moving + reserve,
        bound=states + moving + reserve + 0.06 * states + 0.10 * moving + 0.20 * GIB + 1e9
        + buffers,
    )  # fmt: skip
    # InternEvo's backward pass hides 0.55 of 2 bytes; 2.4 ms a rank to hand the weights out.
    found = run(problem(MODELLED, framework="internevo", zero=1), ONE)
    near(found.time.dp_sync_s, 6 * (780e6 * (0.45 * 2 / 2 + 1) / 4 / 2e9 + MS) + 3 * 2.4 * MS)


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): value
    for name, value in list(globals().items())
    if name.startswith("check_")
}
