"""One row of a truth table as typed fields; what a row leaves out stays None."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sailor.errors import InputError
from sailor.model.csv_text import CsvRow, read_csv

COLUMNS = (
    "source", "model", "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq",
    "gpu", "n_gpus", "gpus_per_node", "tp", "pp", "dp", "cp", "vpp", "mbs", "gbs", "precision",
    "recompute", "zero/fsdp", "measured_iter_s", "measured_tokens_per_s_per_gpu",
    "measured_tflops_per_gpu", "measured_mfu", "measured_peak_mem_gib", "notes",
)  # fmt: skip
REQUIRED = ("source", "model", "gpu", "n_gpus")
GIB = 2**30

# What no published run comes near; beyond it a field is a misprint.
_LARGEST = {
    "layers": 1024, "hidden": 10**6, "heads": 4096, "ffn": 4 * 10**6, "vocab": 10**7,
    "seq": 10**7, "n_gpus": 10**6, "tp": 4096, "pp": 1024, "dp": 10**6, "mbs": 65536,
    "gbs": 10**7, "cp": 1024, "vpp": 256,
}  # fmt: skip


class Refused(Exception):  # noqa: N818 (it is an answer, not a fault)
    """A row that the simulator can't express, with the reason in words."""


@dataclass
class Fields:
    """A row's figures. Families of sources correct and complete them before use."""

    group: str
    place: str
    source: str
    model: str
    gpu: str
    notes: str
    precision: str
    recompute: str
    sharding: str
    memory: str
    params: float | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    seq: int | None
    n_gpus: int | None
    gpus_per_node: int | None
    tp: int | None
    pp: int | None
    dp: int | None
    cp: int | None
    vpp: int | None
    mbs: int | None
    gbs: int | None
    iter_s: float | None
    tokens_per_s: float | None  # of one GPU
    tflops: float | None  # of one GPU
    mfu_pct: float | None
    remarks: list[str] = field(default_factory=list)

    def note(self, pattern: str) -> str | None:
        """Return the first group of a pattern in the notes."""
        found = re.search(pattern, self.notes)
        return found.group(1) if found else None

    def flag(self, name: str) -> str | None:
        """Return the value of a `name=value` note."""
        return self.note(rf"(?:^|; ){re.escape(name)}=([^;]*)")

    def flag_text(self) -> str:
        """Return the notes' `name=value` parts."""
        return "; ".join(part for part in self.notes.split("; ") if "=" in part)

    def need(self, name: str) -> int:
        """Return a whole number that the row must have."""
        value: int | None = getattr(self, name)
        if value is None or value < 1:
            raise Refused(f"the row doesn't give {name}")
        return value

    def check_sizes(self) -> None:
        """Refuse figures that no run can have: misprints, and columns that slipped."""
        for name, largest in _LARGEST.items():
            value: int | None = getattr(self, name)
            if value is not None and value > largest:
                raise Refused(f"{name} {value} is beyond any model or cluster")

    @property
    def has_figure(self) -> bool:
        """Return whether a time or a memory was measured."""
        times = (self.iter_s, self.tokens_per_s, self.tflops, self.mfu_pct)
        return bool(self.memory) or any(figure is not None for figure in times)


def read_table(path: Path) -> Sequence[Fields]:
    """Return the rows of a truth table."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't read it: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("this is not UTF-8 text", where=str(path)) from None
    table = read_csv(
        text, path.name, REQUIRED, hint="a truth table has the columns of docs/validation.md"
    )
    return [_fields(row, path.stem) for row in table.rows]


def _fields(row: CsvRow, stem: str) -> Fields:
    text = row.text
    return Fields(
        group=text("group") or stem,
        place=row.place,
        source=text("source"),
        model=text("model"),
        gpu=text("gpu"),
        notes=text("notes"),
        precision=text("precision"),
        recompute=text("recompute"),
        sharding=text("zero/fsdp"),
        memory=text("measured_peak_mem_gib"),
        params=_number(text("params")),
        tokens_per_s=_number(text("measured_tokens_per_s_per_gpu")),
        iter_s=_number(text("measured_iter_s")),
        tflops=_number(text("measured_tflops_per_gpu")),
        mfu_pct=_number(text("measured_mfu")),
        layers=_whole(text("layers")),
        hidden=_whole(text("hidden")),
        heads=_whole(text("heads")),
        kv_heads=_whole(text("kv_heads")),
        ffn=_whole(text("ffn")),
        vocab=_whole(text("vocab")),
        seq=_whole(text("seq").partition(" ")[0]),
        n_gpus=_whole(text("n_gpus")),
        gpus_per_node=_whole(text("gpus_per_node")),
        tp=_whole(text("tp")),
        pp=_whole(text("pp")),
        dp=_whole(text("dp")),
        cp=_whole(text("cp")),
        vpp=_whole(text("vpp")),
        mbs=_whole(text("mbs")),
        gbs=_whole(text("gbs")),
    )


def _number(text: str) -> float | None:
    """Return a positive number; words such as "not stated" are no figure."""
    try:
        value = float(text.replace(",", "").rstrip("%"))
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _whole(text: str) -> int | None:
    value = _number(text)
    return round(value) if value is not None and value < 10**12 else None
