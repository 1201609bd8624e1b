"""What the cluster probe found, as text: a piece of a job file, and tables for people."""

from __future__ import annotations

import textwrap
from datetime import date

from sailor.profiling.cluster_probe import ClusterProbe, default_text

_COMMENT_WIDTH = 98


def snippet(found: ClusterProbe, node_type: str, day: date) -> str:
    """Return the `cluster:` of a job file in YAML, with where its figures come from."""
    head = f"sailor profile cluster, {day}: {node_type}, {found.device}"
    figures = [
        f"  {figure.name}: {figure.text}  # {figure.what}; spread {figure.spread:.0%}"
        for figure in found.figures
    ]
    remarks = [line for remark in found.remarks for line in _comment(remark)]
    return "\n".join((*_comment(head), *remarks, "cluster:", *figures)) + "\n"


def figure_rows(found: ClusterProbe) -> list[tuple[str, str, str, str, str]]:
    """Return name, value, default, spread and meaning of every figure."""
    return [
        (figure.name, figure.text, default_text(figure.name), f"{figure.spread:.0%}", figure.what)
        for figure in found.figures
    ]


def message_rows(found: ClusterProbe) -> list[tuple[str, str, str, str, str]]:
    """Return place, KiB, median ms, spread and GB/s of the all-reduces of every size."""
    return [
        (
            message.among, f"{message.num_bytes >> 10}", f"{message.seconds * 1e3:.3g}",
            f"{message.spread:.0%}", f"{message.bytes_per_s / 1e9:.3g}",
        )
        for message in found.messages
    ]  # fmt: skip


def _comment(sentence: str) -> list[str]:
    """Return a sentence as comment lines; a line break in it would end the comment."""
    plain = " ".join(sentence.split())
    return [f"# {line}" for line in textwrap.wrap(plain, _COMMENT_WIDTH)]
