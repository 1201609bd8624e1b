"""The runtime against torch's own parts, on two processes of this machine (gloo, fp32).

The same small GPT three ways: pp 2 against torch.distributed.pipelining's Schedule1F1B, dp 2
against DistributedDataParallel, tp 2 against DTensor's parallelize_module. Both sides live in the
same two processes and take turns, so that what else the machine does falls on both alike. Printed
is theirs / ours of the fastest rounds: above 1 sailor's runtime is faster. Last, what the engine
itself takes in an iteration of 64 microbatches, over 64 x 5 ms.

    python benchmarks/bench_runtime.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan, Replica, Stage
from sailor_megatron.engine import Engine
from sailor_megatron.layout import PlanLayout
from sailor_megatron.options import RunOptions
from sailor_megatron.process_groups import Place, join

SPEC = ModelSpec(
    name="bench", num_layers=4, hidden=256, ffn=1024, num_heads=8, num_kv_heads=8, head_dim=32,
    vocab=1024, seq_len=128, max_positions=128,
)  # fmt: skip
MICROBATCH, COUNT = 4, 8
OPTIONS = RunOptions(precision="fp32", learning_rate=1e-4, clip_norm=None)
FLOORS = {"pp": 0.95, "dp": 0.95, "tp": 0.95}
MAX_OVERHEAD = 0.03
SLOTS, SLOT_S = 64, 0.005  # microbatches of the overhead's iteration, seconds of each
CPU = Place("gloo", torch.device("cpu"))


def plan_of(kind: str, count: int = COUNT, spec: ModelSpec = SPEC) -> Plan:
    tp, dp = (2 if kind == "tp" else 1), (2 if kind == "dp" else 1)
    count //= dp
    replica = Replica(
        gpu="cpu", node_type="local", zone="here",
        tp=tp, microbatch=MICROBATCH, num_microbatches=count,
    )  # fmt: skip
    middle = 1 + spec.num_layers // 2
    edges = [0, middle, spec.num_units] if kind == "pp" else [0, spec.num_units]
    return Plan(
        model=spec.name, num_units=spec.num_units, global_batch=MICROBATCH * count * dp,
        stages=tuple(
            Stage(start=a, stop=b, replicas=(replica,) * dp)
            for a, b in pairwise(edges)
        ),
    )  # fmt: skip


def tokens(num_samples: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SPEC.vocab, (num_samples, SPEC.seq_len + 1), generator=generator)


class Block(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        hidden = SPEC.hidden
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        if fused:
            self.qkv = nn.Linear(hidden, 3 * hidden)
        else:
            self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.fused = fused
        self.output = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, SPEC.ffn), nn.Linear(SPEC.ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        parts = self.qkv(h).chunk(3, -1) if self.fused else (self.q(h), self.k(h), self.v(h))
        q, k, v = (p.unflatten(-1, (-1, SPEC.head_dim)).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Torch's own modules; `first` and `last` say whether it has embedding and head."""

    def __init__(
        self, blocks: int, *, first: bool = True, last: bool = True, fused: bool = True
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SPEC.vocab, SPEC.hidden) if first else None
        self.positions = (
            nn.Parameter(torch.randn(SPEC.max_positions, SPEC.hidden) * 0.02) if first else None
        )
        self.blocks = nn.ModuleList(Block(fused=fused) for _ in range(blocks))
        self.norm = nn.LayerNorm(SPEC.hidden) if last else None
        self.head = nn.Linear(SPEC.hidden, SPEC.vocab, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def torch_pp(rank: int) -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    module = Gpt(SPEC.num_layers // 2, first=rank == 0, last=rank == 1)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, COUNT, loss_fn=loss_of)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4, fused=True)
    data = tokens(MICROBATCH * COUNT)

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(data[:, :-1])
        else:
            schedule.step(target=data[:, 1:])
        optimizer.step()
        dist.barrier()

    return step


def accumulating(
    module: nn.Module, count: int, backward: Callable[[Tensor, Tensor], None]
) -> Callable[[], None]:
    kinds: dict[type, list[Tensor]] = {}  # the fused kernel takes no mixture of them
    for parameter in module.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    optimizers = [torch.optim.Adam(group, lr=1e-4, fused=True) for group in kinds.values()]
    data = tokens(MICROBATCH * count).split(MICROBATCH)

    def step() -> None:
        module.zero_grad()
        for index, part in enumerate(data):
            if isinstance(module, nn.parallel.DistributedDataParallel) and index + 1 < count:
                with module.no_sync():
                    backward(module(part[:, :-1]), part[:, 1:])
            else:
                backward(module(part[:, :-1]), part[:, 1:])
        for optimizer in optimizers:
            optimizer.step()
        dist.barrier()

    return step


def torch_dp(_rank: int) -> Callable[[], None]:
    count = COUNT // 2

    def backward(logits: Tensor, targets: Tensor) -> None:
        (loss_of(logits, targets) / count).backward()

    module = nn.parallel.DistributedDataParallel(
        Gpt(SPEC.num_layers), gradient_as_bucket_view=True, static_graph=False
    )
    return accumulating(module, count, backward)


def torch_tp(_rank: int) -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    module = Gpt(SPEC.num_layers, fused=False)
    styles = {f"blocks.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")}
    styles |= {f"blocks.*.{name}": RowwiseParallel() for name in ("output", "down")}
    styles["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    styles["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(module, init_device_mesh("cpu", (2,)), styles)

    def backward(logits: Tensor, targets: Tensor) -> None:
        with loss_parallel():
            (loss_of(logits, targets) / COUNT).backward()

    return accumulating(module, COUNT, backward)


TORCH = {"pp": torch_pp, "dp": torch_dp, "tp": torch_tp}


def ours(kind: str, rank: int) -> Callable[[], None]:
    plan = plan_of(kind)
    data = tokens(plan.samples)
    size = plan.samples
    engine = Engine(
        PlanLayout(SPEC, plan), rank, OPTIONS, CPU,
        lambda samples: data[samples.start % size : samples.start % size + len(samples)],
    )  # fmt: skip

    def step() -> None:
        engine.step()
        dist.barrier()

    return step


class _Sleep(torch.autograd.Function):
    """Takes a third of a microbatch's time forward and two thirds backward, and no processor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds / 3)
        return grad, None


def overhead(rank: int) -> dict[str, float]:
    """Return what the engine itself takes, as fractions of 64 microbatches of 5 ms.

    "busy": processor time of its thread where stages compute nothing, which is schedule,
    messages, autograd, sums and optimizer step. "wall": the seconds of such an iteration, which
    has nothing to hide messages behind. "hidden": what an iteration takes whose stages sleep 5 ms
    a microbatch, beyond the same sleeps in a loop (65 of them: the pipeline fills once).
    """
    busy, wall, hidden = [], [], []
    idle, sleeping = _empty_engine(rank, 0.0), _empty_engine(rank, SLOT_S)
    for index in range(30):
        dist.barrier()
        begin, used = time.perf_counter(), time.thread_time()
        idle.step()
        wall.append(time.perf_counter() - begin)
        busy.append(time.thread_time() - used)
        if index % 3 == 0:
            dist.barrier()
            begin = time.perf_counter()
            sleeping.step()
            middle = time.perf_counter()
            for _ in range(SLOTS + 1):
                time.sleep(SLOT_S / 3)
                time.sleep(2 * SLOT_S / 3)
            hidden.append((middle - begin) - (time.perf_counter() - middle))
    whole_s = SLOTS * SLOT_S
    return {
        "busy": min(busy) / whole_s,
        "wall": min(wall) / whole_s,
        "hidden": statistics.median(hidden) / whole_s,
    }


def _empty_engine(rank: int, seconds: float) -> Engine:
    """Return an engine whose stages add a vector, and sleep."""
    spec = SPEC.model_copy(update={"hidden": 8, "ffn": 8, "num_heads": 1, "num_kv_heads": 1,
                                   "head_dim": 8, "seq_len": 4, "max_positions": 4})  # fmt: skip
    plan = plan_of("pp", SLOTS, spec)
    data = torch.zeros(MICROBATCH, spec.seq_len + 1, dtype=torch.long)
    engine = Engine(PlanLayout(spec, plan), rank, OPTIONS, CPU, lambda _samples: data)
    weight = engine.params.leaf("positions.weight" if rank == 0 else "final_norm.weight")
    start = torch.zeros(MICROBATCH, spec.seq_len, spec.hidden)

    def stage(x: Tensor, _targets: Tensor | None, _samples: object) -> Tensor:
        y = (x if x.is_floating_point() else start) + weight.view(-1)[: spec.hidden]
        if seconds:
            y = _Sleep.apply(y, seconds)
        return y.sum() if rank == 1 else y

    stage.first, stage.last = rank == 0, rank == 1  # type: ignore[attr-defined]
    engine.chunks[0].stage = stage  # type: ignore[assignment]
    return engine


def worker(kind: str, rank: int, store: str, rounds: int) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    join(dist.FileStore(store, 2), rank, 2, CPU, timeout_s=120)
    if kind == "overhead":
        result = overhead(rank)
    else:
        sides = {"ours": ours(kind, rank), "torch": TORCH[kind](rank)}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for index in range(rounds + 2):
            for name, step in sides.items():
                dist.barrier()
                begin = time.perf_counter()
                step()
                if index >= 2:  # after warming up
                    seconds[name].append(time.perf_counter() - begin)
        result = {name: min(values) for name, values in seconds.items()}
    if rank == 0:
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # the groups' threads take seconds to wind down


def run(kind: str, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--kind", kind, "--rank", str(rank), "--store", store,
                 "--rounds", str(rounds)],
                stdout=subprocess.PIPE, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            outputs = [process.communicate(timeout=300)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    found: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kind")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    given = parser.parse_args()
    if given.rank is not None:
        worker(given.kind, given.rank, given.store, given.rounds)
    failed = False
    for kind in [given.kind] if given.kind else [*FLOORS, "overhead"]:
        found = run(kind, given.rounds)
        if kind == "overhead":
            ok = found["busy"] <= MAX_OVERHEAD
            print(f"overhead  {found['busy']:.2%} of processor time, at most {MAX_OVERHEAD:.0%}"
                  f"; wall: {found['wall']:.2%} beside nothing, {found['hidden']:+.2%} beside "
                  f"stages of {SLOT_S * 1e3:.0f} ms")  # fmt: skip
        else:
            ratio = found["torch"] / found["ours"]
            ok = ratio >= FLOORS[kind]
            print(f"{kind} 2  ours {found['ours']:.4f} s  torch {found['torch']:.4f} s"
                  f"  ratio {ratio:.3f}  at least {FLOORS[kind]}")  # fmt: skip
        failed |= not ok
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
