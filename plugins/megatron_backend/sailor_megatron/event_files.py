"""Metrics as TensorBoard event files, by torch's own writer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sailor.errors import PluginError
from sailor_megatron.metrics import StepMetrics

FOLDER = "tensorboard"


def check_tensorboard() -> None:
    """Refuse where the writer can't be imported: torch's needs the package tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401
    except ImportError:
        raise PluginError(
            "event files need the package tensorboard, which is not installed",
            where="--tensorboard",
            hint="pip install tensorboard, or leave --tensorboard out: metrics.csv is written",
        ) from None


class EventWriter:
    """Writes each figure of an iteration as a scalar; flushed each time, for whoever watches."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        self._writer = make(str(folder / FOLDER))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()

    def add(self, metrics: StepMetrics) -> None:
        """Write one iteration."""
        for name, value in asdict(metrics).items():
            if name != "step":
                self._writer.add_scalar(name, value, metrics.step)
        self._writer.flush()
