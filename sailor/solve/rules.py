"""The heuristics of the dynamic programme, each a rule with a name that can be switched off.

H1 to H6 are those of the Sailor paper (SOSP'25, section 4.2), stated here as this planner keeps
them. H1 (the GPUs of a replica lie in one node) is not among them: a plan can't say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sailor.errors import UnknownNameError

H2 = "h2-tp-from-memory"
H3 = "h3-dp-steps"
H4 = "h4-dp-by-bound"
H5 = "h5-stage-in-region"
H6 = "h6-merge-zones"

RULES: Mapping[str, str] = MappingProxyType(
    {
        H2: "a tp degree is left out where a smaller one holds as much and is as fast",
        H3: "of the dp degrees with one microbatch count only the smallest is tried",
        H4: "dp degrees are tried best bound first, and the search of cells ends at a patience",
        H5: "all replicas of a stage lie in one region",
        H6: "the zones of a region are one pool; zones are given out afterwards",
    }
)


def active_rules(disabled: Iterable[str]) -> frozenset[str]:
    """Return the rules in force; raises UnknownNameError for a name that is no rule."""
    off = set(disabled)
    for name in sorted(off):
        if name not in RULES:
            raise UnknownNameError("rule", name, RULES, where="--without-rule")
    return frozenset(RULES) - off
