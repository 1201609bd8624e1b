"""One worker: `python -m sailor_megatron.worker RUN_FOLDER`, under sailor's launcher or torchrun.

The environment says who it is, in torchrun's words: RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from sailor.errors import PluginError, SailorError
from sailor_megatron.engine import Engine, StepReport
from sailor_megatron.layout import PlanLayout
from sailor_megatron.metrics import MetricsWriter, StepMetrics
from sailor_megatron.peak_memory import peak_memory
from sailor_megatron.process_groups import choose_place, join, leave
from sailor_megatron.run_folder import METRICS_FILE, RunSpec, checkpoint_folder, read_run
from sailor_megatron.text_data import TextSamples, read_text

EXIT_FAILED, EXIT_LOST_PEER = 6, 7
CONNECT_TIMEOUT = datetime.timedelta(seconds=120)

log = logging.getLogger("sailor.worker")


@dataclass(frozen=True)
class Identity:
    """Who this process is among the others."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    host: str
    port: int
    store_is_up: bool  # by the launcher or torchrun's agent; else rank 0 hosts it

    @classmethod
    def of_environment(cls) -> Identity:
        """Read torchrun's variables."""
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise PluginError(
                f"{', '.join(missing)} not set",
                where="environment",
                hint="start workers with `sailor train` or torchrun",
            )
        world = int(os.environ["WORLD_SIZE"])
        return cls(
            rank=int(os.environ["RANK"]),
            world=world,
            local_rank=int(os.environ.get("LOCAL_RANK", os.environ["RANK"])),
            local_world=int(os.environ.get("LOCAL_WORLD_SIZE", world)),
            host=os.environ.get("MASTER_ADDR", "127.0.0.1"),
            port=int(os.environ["MASTER_PORT"]),
            store_is_up=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def main(arguments: Sequence[str]) -> int:
    """Run one worker to its end and return its exit code."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    if os.environ.get("SAILOR_WATCH_STDIN"):
        threading.Thread(target=_end_with_launcher, daemon=True).start()
    try:
        train(Path(arguments[0]), Identity.of_environment())
    except SailorError as error:
        log.error("%s", error)
        return EXIT_FAILED
    except dist.DistError as error:
        return _lost(error)
    except RuntimeError as error:
        if "gloo" not in str(error) and "Connection" not in str(error):
            raise
        return _lost(error)
    return 0


def _lost(error: RuntimeError) -> int:
    log.error("lost a peer: %s", " ".join(str(error).split())[:300])
    return EXIT_LOST_PEER


def _end_with_launcher() -> None:
    """End this process when the launcher's end of standard input closes."""
    while os.read(0, 1024):
        pass
    os._exit(EXIT_LOST_PEER)


def train(folder: Path, who: Identity) -> None:
    """Train one rank's part of a run."""
    run = read_run(folder)
    layout = PlanLayout(run.spec, run.plan)
    if len(layout.workers) != who.world:
        raise PluginError(
            f"the plan has {len(layout.workers)} workers and {who.world} were started",
            where=str(folder),
            hint="start as many processes as the plan has GPUs",
        )
    place = choose_place(who.local_rank, who.local_world)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // who.local_world))
    text, where = read_text(run.text)
    samples = TextSamples(text, run.spec.seq_len, run.options.seed, where=where)
    log.info("rank %d: %s, %s", who.rank, layout.workers[who.rank].label(), place)
    join(_store(who), who.rank, who.world, place)
    try:
        engine = Engine(layout, who.rank, run.options, place, samples)
        log.info("%s stage, %d parameters", engine.stage.kind, engine.params.master.numel())
        _loop(folder, run, engine)
    finally:
        leave()


def _store(who: Identity) -> TCPStore:
    try:
        return TCPStore(
            who.host,
            who.port,
            who.world,
            who.rank == 0 and not who.store_is_up,
            timeout=CONNECT_TIMEOUT,
            wait_for_workers=False,
        )
    except dist.DistError as error:
        reason = " ".join(str(error).split())[:200]
        raise PluginError(
            f"can't be reached or used: {reason}",
            where=f"{who.host}:{who.port}",
            hint="check that the port is free there and open between the hosts",
        ) from None


def _loop(folder: Path, run: RunSpec, engine: Engine) -> None:
    checkpoints = None
    if run.load is not None or run.save_every is not None:
        # Not at the top: a second for every worker, which most runs can do without.
        from sailor_megatron.checkpoint import Checkpoints

        checkpoints = Checkpoints(checkpoint_folder(folder), engine)
        if run.load is not None:
            checkpoints.load(Path(run.load))
    tokens = run.plan.samples * run.spec.seq_len
    writer = MetricsWriter(folder / METRICS_FILE) if engine.worker.rank == 0 else None
    with writer or nullcontext():
        for _ in range(run.steps):
            report = engine.step()
            _note(report)
            if writer is not None:
                writer.add(StepMetrics.of(report, tokens))
            if checkpoints and run.save_every and engine.iteration % run.save_every == 0:
                checkpoints.save()
    if checkpoints:
        checkpoints.finish()
    log.info("peak memory %d bytes", peak_memory(engine.groups.place.device))


def _note(report: StepReport) -> None:
    log.info("step %d: loss %.6f, %.4f s", report.iteration, report.loss, report.total_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
