"""Seconds as integers: rounding goes the way that keeps a bound a bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.solve.cp_sat.scaling import Scale


@given(
    cutoff=st.floats(1e-4, 1e5),
    parts=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60),
)
def test_a_rounded_sum_is_below_and_within_its_error(cutoff: float, parts: list[float]) -> None:
    scale = Scale.of_cutoff(cutoff)
    terms = [part * cutoff for part in parts]
    found = scale.seconds(sum(scale.down(term) for term in terms))
    assert found <= sum(terms) * (1 + 1e-12)
    assert sum(terms) - found <= scale.error_s(len(terms)) * (1 + 1e-6)


@given(cutoff=st.floats(1e-4, 1e5), share=st.floats(0.0, 1.0))
def test_a_limit_is_rounded_up(cutoff: float, share: float) -> None:
    scale = Scale.of_cutoff(cutoff)
    limit = share * cutoff
    assert scale.up(limit) >= limit * scale.units_per_s
    assert scale.up(limit) <= limit * scale.units_per_s + 1 + 1e-5
    assert scale.down(limit) <= scale.up(limit)


def test_a_thousand_terms_are_within_a_tenth_of_a_per_mille_of_the_cutoff() -> None:
    scale = Scale.of_cutoff(2.5)
    assert scale.error_s(1000) / 2.5 < 1e-4
    assert scale.up(2.5) == 20_000_001  # 2e7 units, and what the rounding forgives


def test_arrays_are_rounded_like_numbers() -> None:
    scale = Scale.of_cutoff(1.0)
    seconds = np.array([0.0, 1e-9, 0.25, 1.0])
    assert scale.all_down(seconds).tolist() == [scale.down(float(s)) for s in seconds]


@pytest.mark.parametrize("cutoff", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cutoff_is_a_positive_number(cutoff: float) -> None:
    with pytest.raises(ValueError, match="cutoff"):
        Scale.of_cutoff(cutoff)
