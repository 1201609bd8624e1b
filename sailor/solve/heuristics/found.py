"""The best sketches of a search, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sailor.solve.cell import BREACH
from sailor.solve.heuristics.refine import Scored
from sailor.solve.pools import Pool

_KEPT = 100


@dataclass
class Found:
    """The best sketches of one scope, over all cells."""

    pools: tuple[Pool, ...]
    best: list[Scored] = field(default_factory=list)

    def add(self, scored: Sequence[Scored]) -> None:
        legal = [one for one in scored if one.score < BREACH]
        distinct: dict[object, Scored] = {}
        for one in sorted(self.best + legal, key=lambda one: one.score):
            distinct.setdefault((id(one.cell.search), one.cell.dp, one.sketch.row(0)), one)
        self.best = list(distinct.values())[:_KEPT]

    @property
    def score(self) -> float:
        return self.best[0].score if self.best else float("inf")
