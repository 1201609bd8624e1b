"""The page docs/validation.md: what was measured, how far the simulator is from it, and why."""

from __future__ import annotations

from collections.abc import Sequence

from sailor.sim.clusters import CLUSTERS
from sailor.sim.device import calibrated_types
from sailor.sim.frameworks import framework_names, framework_times
from sailor.validation.fields import COLUMNS
from sailor.validation.report import refusals, table_rows
from sailor.validation.score import ValidationReport

_INTRODUCTION = """\
# Validation

This page is written by `sailor validate --page FILE TABLE...`; don't edit it.

The simulator ran over public measurements, row by row: the SOSP'25 artifact's GH200 runs with their
measured layer times in the event engine, all others without a profile. Errors are those of the
prediction against the measured figure, in percent: the mean and the median of their sizes, the
bias (signed mean) and the worst row. "Above bound" counts rows whose measured peak lies above the
upper bound that verdicts use.
"""

_READING = """\
## How to read it

The figures hold for the frameworks, GPU types and clusters of these tables: their constants were
fitted to them, by GPU type, by framework and by cluster, never by row or by model. For a system
that took no part, take the errors of "Left out" below.

What is left has these causes. Timings of small models (vTrain's node, Megatron-LM's functional
tests) measure how fast a host launches kernels, which differs between sessions by a quarter. Of
vTrain's large runs a few contradict each other (tp 2 and pp 16 at microbatch 3 and 6). BLOOM's
repeated runs differ by 3 to 6 %. Of MosaicML's rows four are slower than both of their neighbours.
nanotron prints the best of many runs on a network that it doesn't describe. One of BLOOM's three
runs out of memory (206B, tp 4, pp 12) is not foreseen: a run with the same layout and 98 % of its
parameters took 67 GB of the 80. The V100 runs of 2021 have their shape inferred from the parameter
count, and include slow ones of a framework under test.

Where a source leaves a choice open, the rows say so (`--rows`): an unstated microbatch size is the
fastest, an unstated attention kernel (27 functional tests) the one whose memory is nearer. One of
BLOOM's memory figures is left out, because it contradicts a larger microbatch of the same layout.

Three figures of a cluster decide most: how much of its NVLink a collective reaches, its network,
and how fast its hosts launch kernels. They are fields of `ClusterFacts`, with defaults.
"""

LEFT_OUT_HEAD = ("table left out", "mean error of its times, %", "bias, %")


def as_markdown(report: ValidationReport, left_out: Sequence[Sequence[str]] = ()) -> str:
    """Return the page; `left_out` holds lines of (table, mean, bias)."""
    parts = [
        _INTRODUCTION,
        _table(table_rows(report)),
        f"{report.refused_pct:.1f} % of the rows with a figure were refused; "
        f"{report.without_figure} rows hold no figure.\n",
        _READING,
    ]
    if left_out:
        parts += [
            "## Left out\n\nConstants fitted without the table; its cluster's figures are the "
            "defaults, except for the GPUs of a node and its NICs' data sheet.\n",
            _table([LEFT_OUT_HEAD, *left_out]),
        ]
    parts += ["## Refused rows\n", _bullets(refusals(report)), _constants(), _columns()]
    return "\n".join(parts)


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    text = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    text += ["| " + " | ".join(line) + " |" for line in rest]
    return "\n".join(text) + "\n"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _constants() -> str:
    clusters = [("cluster", "NVLink share", "NICs, GB/s a node", "NIC share", "host", "source")]
    clusters += [
        (
            facts.name,
            f"{facts.link_share:.2f}",
            f"{facts.nic_bandwidth / 1e9:.0f}",
            f"{facts.nic_share:.2f}",
            f"{facts.host_factor:.2f}",
            facts.source,
        )
        for facts in CLUSTERS.values()
    ]
    programs = [("framework", "launch of a block, ms", "source")]
    programs += [
        (name, f"{framework_times(name).launch_s * 1e3:.2f}", framework_times(name).source)
        for name in framework_names()
    ]
    types = [("GPU type", "matrix products", "memory", "source")]
    types += [
        (name, f"{facts.gemm_share:.2f}", f"{facts.memory_share:.2f}",
         facts.assumption or facts.source)
        for name, facts in calibrated_types()
    ]  # fmt: skip
    return "\n".join(
        [
            "## Constants\n\nShares are of the data sheet's figure.\n",
            _table(types),
            _table(programs),
            _table(clusters),
        ]
    )


def _columns() -> str:
    return (
        "## Your own table\n\nA truth table is a CSV file with these columns; a field may be "
        "empty:\n\n" + ", ".join(f"`{name}`" for name in COLUMNS) + ".\n"
    )
