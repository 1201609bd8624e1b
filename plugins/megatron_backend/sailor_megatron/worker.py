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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from sailor.errors import PluginError, SailorError
from sailor_megatron.engine import Engine
from sailor_megatron.layout import PlanLayout
from sailor_megatron.process_groups import choose_place, join, leave
from sailor_megatron.recorder import Recorder
from sailor_megatron.run_folder import (
    JOINS_VARIABLE,
    read_run,
)
from sailor_megatron.running_changes import RunningChanges
from sailor_megatron.text_data import TextSamples, read_text
from sailor_megatron.training_loop import TrainingLoop
from sailor_megatron.weights.load import load_weights

if TYPE_CHECKING:
    pass

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
    joins: int = 0  # the number of the change of plan with which it comes; 0: from the start

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
            joins=int(os.environ.get(JOINS_VARIABLE, "0")),
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
    if not who.joins and len(layout.workers) != who.world:
        raise PluginError(
            f"the plan has {len(layout.workers)} workers and {who.world} were started",
            where=str(folder),
            hint="start as many processes as the plan has GPUs",
        )
    place = choose_place(who.local_rank, who.local_world)
    if run.device == "cuda" and place.device.type != "cuda":
        raise PluginError(
            f"{who.local_world} workers were started here, and this machine has "
            f"{torch.cuda.device_count()} GPUs",
            where="--device cuda",
            hint="start at most one worker a GPU",
        )
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // who.local_world))
    text, where = read_text(run.text)
    samples = TextSamples(text, run.spec.seq_len, run.options.seed, where=where)
    log.info("process %d of %d, %s", who.rank, who.world, place)
    store = _store(who)
    changes = RunningChanges(
        folder, run, who.rank, store, place, samples, number=max(who.joins - 1, 0)
    )
    recorder = Recorder(folder, run, place)
    try:
        if who.joins:
            engine = changes.arrive()
        else:
            join(store, who.rank, who.world, place)
            engine = Engine(layout, who.rank, run.options, place, samples)
            if run.init_from is not None:
                load_weights(Path(run.init_from), engine.params, engine.options)
        if engine is not None:
            TrainingLoop(folder, run, recorder, changes).run(engine)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
