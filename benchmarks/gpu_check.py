"""One machine's device against the simulator: layer times, iteration times, memory, and losses.

    python benchmarks/gpu_check.py                  # the first GPU, bf16, under ten minutes
    python benchmarks/gpu_check.py --device cpu     # a small model, a minute or two

Nothing is asked of the machine but torch and sailor. On the device, one after another:

1. how fast it multiplies and copies, and sailor's profilers: layer times and kept bytes;
2. one rank that trains the whole model, with torch's stages and, where it can be imported,
   megatron-core's: seconds and memory beside what the simulator says with those layer times;
3. six ranks of a mixed plan (tp 2 and 1, two pipelines) that share the device over gloo: their
   losses are those of the one rank, and their memory is that of the simulator.

What can't be done is skipped with a sentence. Exit code 1: losses differ, or ranks failed.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_check_plans import GPU, MICROBATCH, job_of, plan_of, spec_of
from torch import Tensor

import sailor
from sailor.interfaces import ProfileRequest
from sailor.model.arch import ModelSpec
from sailor.model.job import Job
from sailor.profiling.profilers import profiled
from sailor.profiling.store import ProfileStore
from sailor.registry import Registry
from sailor_megatron.layout import PlanLayout
from sailor_megatron.models.factory import megatron_obstacle
from sailor_megatron.options import RunOptions
from sailor_megatron.peak_memory import memory_before, peak_memory
from sailor_megatron.process_groups import Place, join

STEPS = 6
LOSS_TOLERANCE = 0.02  # relative: bf16 keeps 8 bits, and ranks add in another order
LIMIT_S = 540.0
MIB = 2**20


# What ranks do, in processes of their own.


def rank_main(given: argparse.Namespace) -> None:
    """Train some iterations as one rank and print what was seen as JSON."""
    from sailor_megatron.engine import Engine

    device = torch.device(given.device)
    place = Place("gloo", device, through_host=True)
    torch.set_num_threads(1)
    spec = ModelSpec.model_validate_json(given.spec)
    plan = plan_of(spec, given.kind)
    join(dist.FileStore(given.store, plan.num_gpus), given.rank, plan.num_gpus, place)
    generator = torch.Generator().manual_seed(1)
    data = torch.randint(spec.vocab, (plan.samples, spec.seq_len + 1), generator=generator)

    def samples(wanted: Sequence[int]) -> Tensor:
        return data[[index % plan.samples for index in wanted]]

    options = RunOptions(precision="bf16", learning_rate=1e-4, stages=given.stages)
    before = memory_before(device)
    engine = Engine(PlanLayout(spec, plan), given.rank, options, place, samples)
    reports = [_timed_step(engine.step, device) for _ in range(STEPS)]
    found = {
        "rank": given.rank,
        "kind": engine.chunks[0].stage.kind,
        "losses": [report.loss for report, _ in reports],
        "iteration_s": statistics.median(seconds for _, seconds in reports[2:]),
        "model_bytes": peak_memory(device) - before,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # the groups' threads take seconds to wind down


def _timed_step(step: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    begin = time.perf_counter()
    report = step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return report, time.perf_counter() - begin


class RanksFailedError(Exception):
    """Some rank died, or took too long."""


def run_ranks(
    kind: str, stages: str, device: str, spec: ModelSpec, limit_s: float
) -> list[dict[str, Any]]:
    """Run the ranks of a plan on the device and return what each saw; none is left behind."""
    count, deadline = plan_of(spec, kind).num_gpus, time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            sys.executable, __file__, "--device", device, "--kind", kind, "--stages", stages,
            "--store", str(folder / "store"), "--spec", spec.model_dump_json(),
        ]  # fmt: skip
        processes = []
        for rank in range(count):
            with (folder / f"{rank}.out").open("w") as out, (folder / f"{rank}.err").open("w") as e:
                processes.append(
                    subprocess.Popen([*command, "--rank", str(rank)], stdout=out, stderr=e)
                )
        try:
            while any(process.poll() is None for process in processes):
                if any(process.returncode for process in processes):
                    break
                if time.monotonic() > deadline:
                    raise RanksFailedError(f"took longer than {limit_s:.0f} s")
                time.sleep(0.2)
            for rank, process in enumerate(processes):
                if process.returncode:
                    lines = (folder / f"{rank}.err").read_text().split("\n")
                    said = [line for line in lines if line.strip()] or ["it wrote nothing"]
                    raise RanksFailedError(f"rank {rank} failed: {said[-1][:300]}")
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
        return [json.loads((folder / f"{rank}.out").read_text()) for rank in range(count)]


# What the device can do, and what the simulator makes of it.


def rates(device: torch.device) -> Mapping[str, float]:
    """Return products in FLOP/s at bf16 and fp32, and copies in bytes/s (read and written)."""
    size = 4096 if device.type == "cuda" else 512
    found = {}
    for name, dtype in (("half", torch.bfloat16), ("fp32", torch.float32)):
        a = torch.randn(size, size, device=device).to(dtype)
        found[name] = 2.0 * size**3 / _seconds(lambda a=a: a @ a, device)
    a = torch.empty(2**27 if device.type == "cuda" else 2**23, device=device)
    b = torch.empty_like(a)
    found["bytes"] = 2.0 * a.numel() * 4 / _seconds(lambda: b.copy_(a), device)
    return found


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    samples = []
    for _ in range(8):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples[3:])


def profile(spec: ModelSpec, device: torch.device) -> ProfileStore:
    """Return measured layer times at tp 1 and 2, and counted bytes."""
    registry = Registry.load()
    request = ProfileRequest(
        model=spec, precision="bf16", gpu=GPU, tps=(1, 2), microbatches=(MICROBATCH,),
        device=str(device), warmup=3, repeats=10,
    )  # fmt: skip
    profilers = [registry.profiler(name) for name in ("torch", "counted")]
    return profiled(request, profilers, lambda _progress: None)


class Check:
    """The steps, what they found, and what is left of the time."""

    def __init__(self, device: torch.device, limit_s: float) -> None:
        self._device = device
        self._end = time.monotonic() + limit_s
        self.spec = spec_of(device)
        self.found: dict[str, Any] = {"device": str(device), "model": self.spec.name}
        self.failures: list[str] = []

    def run(self) -> None:
        """Do every step for which there is time."""
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "CPU"
        speed = rates(self._device)
        say(
            f"{name}, torch {torch.__version__}: bf16 {speed['half'] / 1e12:.2f} TFLOP/s, fp32 "
            f"{speed['fp32'] / 1e12:.2f}, copies {speed['bytes'] / 1e9:.0f} GB/s"
        )
        self.found.update(name=name, torch=torch.__version__, rates=dict(speed))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile.json"
            store = profile(self.spec, self._device)
            store.save(path)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()  # the ranks are other processes, and want it
            measured = job_of(self.spec, self._device, speed, path)
            self._layers(store, job_of(self.spec, self._device, speed, None))
            losses = self._one_rank(measured)
            self._mixed(measured, losses)

    def _layers(self, store: ProfileStore, modelled: Job) -> None:
        problem = sailor.build_problem(modelled)
        known = {(p.tp, p.microbatch): p for p in problem.profiles}
        for row in store.profiles:
            model = known.get((row.tp, row.microbatch))
            measured_s = row.block.forward_s + row.block.backward_s
            line = f"block, tp {row.tp}: {measured_s * 1e3:.3f} ms measured"
            if model is not None:
                modelled_s = model.block.forward_s + model.block.backward_s
                line += f", {modelled_s * 1e3:.3f} modelled ({_error(modelled_s, measured_s)})"
            say(line)
        self.found["layers"] = [row.model_dump(mode="json") for row in store.profiles]

    def _one_rank(self, job: Job) -> list[float] | None:
        """Train as one rank with each kind of stages; return the losses of torch's."""
        plan, losses = plan_of(self.spec, "one"), None
        obstacle = megatron_obstacle(self.spec, plan, RunOptions(precision="bf16"))
        simulated = sailor.simulate_events(job, plan).estimate
        for stages in ("torch", "megatron"):
            if stages == "megatron" and obstacle is not None:
                say(f"megatron stages: skipped, {obstacle}")
                continue
            ranks = self._ranks("one", stages)
            if ranks is None:
                continue
            (rank,) = ranks
            (memory,) = simulated.memory
            predicted = memory.total_bytes - memory.reserve_bytes
            say(
                f"{stages} stages, one rank: {rank['iteration_s'] * 1e3:.1f} ms an iteration, "
                f"simulated {simulated.iteration_s * 1e3:.1f} "
                f"({_error(simulated.iteration_s, rank['iteration_s'])}); "
                f"{rank['model_bytes'] / MIB:.0f} MiB, simulated {predicted / MIB:.0f} "
                f"({_error(predicted, rank['model_bytes'])})"
            )
            self._compare_losses(f"{stages} stages, one rank", losses, rank["losses"])
            losses = losses or rank["losses"]
        return losses

    def _mixed(self, job: Job, losses: list[float] | None) -> None:
        """Train as six ranks that share the device."""
        plan = plan_of(self.spec, "mixed")
        simulated = sailor.simulate(job, plan)
        ranks = self._ranks("mixed", "torch")
        if ranks is None:
            return
        workers = PlanLayout(self.spec, plan).workers
        for group in simulated.memory:
            taken = max(
                rank["model_bytes"]
                for rank, worker in zip(ranks, workers, strict=True)
                if worker.stage == group.stage and worker.replica in group.replicas
            )
            predicted = group.total_bytes - group.reserve_bytes
            say(
                f"six ranks, stage {group.stage}, tp {group.tp}: {taken / MIB:.0f} MiB, simulated "
                f"{predicted / MIB:.0f} ({_error(predicted, taken)})"
            )
        self._compare_losses("six ranks", losses, ranks[0]["losses"])

    def _ranks(self, kind: str, stages: str) -> list[dict[str, Any]] | None:
        left_s = self._end - time.monotonic()
        what = f"{stages} stages, {kind}"
        if left_s < 20:
            say(f"{what}: skipped, the time is up")
            return None
        try:
            ranks = run_ranks(kind, stages, str(self._device), self.spec, left_s)
        except RanksFailedError as error:
            self.failures.append(f"{what}: {error}")
            say(self.failures[-1])
            return None
        self.found[what] = ranks
        return ranks

    def _compare_losses(
        self, what: str, wanted: list[float] | None, losses: Sequence[float]
    ) -> None:
        if wanted is None:
            return
        most = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True))
        say(f"{what}: losses within {most:.2%} of torch's one rank")
        if not most <= LOSS_TOLERANCE:
            self.failures.append(f"{what}: losses differ by {most:.2%}")


def _error(simulated: float, measured: float) -> str:
    return f"{(simulated / measured - 1) * 100:+.0f} %"


def say(line: str) -> None:
    """Print at once: a run that is cut short has said what it found."""
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds for everything")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    for name in ("--kind", "--store", "--spec"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--stages", default="torch", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        rank_main(given)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        say("torch sees no GPU here; --device cpu runs a small model on the CPU")
        return 1
    device = torch.device(given.device if given.device != "cuda" else "cuda:0")
    if device.type == "cpu":
        torch.set_num_threads(1)  # as the ranks have, or figures couldn't be compared
    begin = time.monotonic()
    check = Check(device, given.limit_s)
    check.run()
    say(f"{'FAILED' if check.failures else 'done'} in {time.monotonic() - begin:.0f} s")
    if given.out is not None:
        given.out.write_text(json.dumps({**check.found, "failures": check.failures}, indent=1))
    return int(bool(check.failures))


if __name__ == "__main__":
    sys.exit(main())
