"""Changes of plan while a run goes on: asked for by files in its folder, carried out by workers.

`change-1.json`, `change-2.json` ... are plans. Rank 0 looks for the next one before each step, and
the sum of the step's losses tells everyone, so that all stop after the same step. Process i has
rank i under every plan that has so many workers: those behind its last rank end, and the launcher
starts the ones that are missing, which wait until all is ready.
"""

from __future__ import annotations

import time
from pathlib import Path

from torch._C._distributed_c10d import Store

from sailor_megatron.engine import Engine, ReadSamples
from sailor_megatron.layout import PlanLayout
from sailor_megatron.live_change import Change, change_plan
from sailor_megatron.process_groups import Place
from sailor_megatron.run_folder import RunSpec, change_file, plan_after

POLL_S = 0.05
_ENDED = "run-ended"


class RunningChanges:
    """The changes of one run as one process sees them. `number` counts those that are done."""

    def __init__(
        self,
        folder: Path,
        run: RunSpec,
        process: int,
        store: Store,
        place: Place,
        read_samples: ReadSamples,
        *,
        number: int = 0,
    ) -> None:
        self._folder, self._run, self._process = folder, run, process
        self._store, self._place, self._read_samples = store, place, read_samples
        self._number = number

    def ready(self) -> bool:
        """Return on rank 0 whether the next change can be made: newcomers are there."""
        if self._process != 0 or not change_file(self._folder, self._number + 1).exists():
            return False
        change = self._next()
        missing = len(change.new.workers) - len(change.old.workers)
        name = self._name("ready")
        return missing <= 0 or self._store.add(name, 0) >= missing

    def make(self, engine: Engine) -> Engine | None:
        """Change the plan with all other workers; None where this one is no longer needed."""
        if self._process == 0:
            self._store.set(self._name("go"), "1")
        return self._make(engine)

    def arrive(self) -> Engine | None:
        """Join a run that goes on, as one of the workers that its next plan has more."""
        self._store.add(self._name("ready"), 1)
        while not self._store.check([self._name("go")]):
            if self._store.check([_ENDED]):
                return None
            time.sleep(POLL_S)
        return self._make(None)

    def end(self) -> None:
        """Tell those who still wait that the run is over."""
        if self._process == 0:
            self._store.set(_ENDED, "1")

    def _make(self, engine: Engine | None) -> Engine | None:
        change = self._next()
        self._number += 1
        return change_plan(
            engine,
            change,
            self._process,
            self._store,
            self._run.options,
            self._place,
            self._read_samples,
        )

    def _next(self) -> Change:
        old, new = (
            PlanLayout(self._run.spec, plan_after(self._folder, self._run, number))
            for number in (self._number, self._number + 1)
        )
        before, processes = len(old.workers), max(len(old.workers), len(new.workers))
        was = tuple(rank if rank < before else None for rank in range(processes))
        return Change(old, new, was, self._number)

    def _name(self, what: str) -> str:
        return f"change-{self._number + 1}-{what}"
