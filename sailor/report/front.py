"""The front of cost and throughput: a table, JSON, and a plot as SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape

from sailor.model.job import Objective
from sailor.report.layout import number, table
from sailor.solve.pareto import ParetoPoint

_WIDTH, _HEIGHT = 720, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 30, 50, 60
_TICKS = 5


def front_text(job: str, points: Sequence[ParetoPoint]) -> str:
    """Return one line a point, slowest first."""
    headings = ("it/s", "s/iteration", "USD/iteration", "USD/h", "pp", "dp", "GPUs", "gap")
    rows = [
        (
            number(point.estimate.iterations_per_s),
            number(point.estimate.iteration_s),
            number(point.estimate.usd_per_iteration),
            number(point.estimate.usd_per_hour),
            str(point.plan.pp),
            str(point.plan.dp),
            str(point.plan.num_gpus),
            "" if point.gap is None else f"{point.gap:.1%}",
        )
        for point in points
    ]
    return f"{job}: what speed costs\n" + table(headings, rows, left="") + "\n"


def front_json(job: str, points: Sequence[ParetoPoint]) -> str:
    """Return the points with plans and estimates."""
    rows = [
        {
            "plan": point.plan.model_dump(mode="json"),
            "estimate": point.estimate.model_dump(mode="json"),
            "objective": point.objective.value,
            "min_iterations_per_s": point.min_iterations_per_s,
            "bound": point.bound,
            "gap": point.gap,
        }
        for point in points
    ]
    return json.dumps({"job": job, "points": rows}, indent=2) + "\n"


def front_svg(job: str, points: Sequence[ParetoPoint]) -> str:
    """Return a plot: iterations a second to the right, dollars an iteration upwards.

    From each point a line goes to its bound: no plan that is at least so fast is cheaper (for the
    fastest: none is faster).
    """
    xs, ys = _values(points, 0), _values(points, 1)
    across, up = _Axis(xs, _LEFT, _WIDTH - _RIGHT), _Axis(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(job)}: what speed costs</text>',
        *_grid(across, up),
    ]
    line = " ".join(
        f"{across.at(p.estimate.iterations_per_s):.1f},{up.at(p.estimate.usd_per_iteration):.1f}"
        for p in points
    )
    parts.append(f'<polyline points="{line}" fill="none" stroke="#2a6f97" stroke-width="1.5"/>')
    for point in points:
        parts += _marks(point, across, up)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


class _Axis:
    """Maps values to pixels, with round ticks that enclose them."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        low, high = min(values), max(values)
        margin = 0.05 * ((high - low) or abs(high) or 1.0)
        low, high = max(0.0, low - margin), high + margin
        self.step = _round_step((high - low) / _TICKS)
        self.low = math.floor(low / self.step) * self.step
        self.high = math.ceil(high / self.step) * self.step
        self._start, self._stop = start, stop

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        part = (value - self.low) / (self.high - self.low)
        return self._start + part * (self._stop - self._start)

    def ticks(self) -> list[float]:
        """Return the values at which lines stand."""
        count = round((self.high - self.low) / self.step)
        return [self.low + n * self.step for n in range(count + 1)]


def _round_step(step: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))


def _values(points: Sequence[ParetoPoint], axis: int) -> list[float]:
    found: list[float] = []
    for point in points:
        own = (point.estimate.iterations_per_s, point.estimate.usd_per_iteration)
        found.append(own[axis])
        end = _bound_end(point)
        if end is not None:
            found.append(end[axis])
    return found


def _bound_end(point: ParetoPoint) -> tuple[float, float] | None:
    """Return where the line to the bound ends, in values; None without a bound."""
    if point.bound is None:
        return None
    if point.objective is Objective.MAX_THROUGHPUT:
        return point.bound, point.estimate.usd_per_iteration
    return point.estimate.iterations_per_s, point.bound


def _grid(across: _Axis, up: _Axis) -> list[str]:
    parts: list[str] = []
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in across.ticks():
        x = across.at(value)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:.4g}</text>')
    for value in up.ticks():
        y = up.at(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    middle = (_TOP + bottom) / 2
    parts += [
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 16}" text-anchor="middle">iterations a '
        "second</text>",
        f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">USD '
        "an iteration</text>",
    ]
    return parts


def _marks(point: ParetoPoint, across: _Axis, up: _Axis) -> list[str]:
    found = point.estimate
    x, y = across.at(found.iterations_per_s), up.at(found.usd_per_iteration)
    parts: list[str] = []
    end = _bound_end(point)
    if end is not None:
        to_x, to_y = across.at(end[0]), up.at(end[1])
        parts.append(f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="#c1666b"/>')
    gap = "no bound" if point.gap is None else f"gap {point.gap:.1%}"
    told = (
        f"{number(found.iterations_per_s)} it/s, {number(found.usd_per_iteration)} USD/iteration, "
        f"pp {point.plan.pp}, dp {point.plan.dp}, {point.plan.num_gpus} GPUs, {gap}"
    )
    parts.append(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#2a6f97"><title>{told}</title></circle>'
    )
    return parts
