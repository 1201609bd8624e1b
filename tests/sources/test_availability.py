"""Availability sources: the job's pool and quota files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sailor.errors import InputError
from sailor.interfaces import SourceContext
from sailor.model.catalog import Catalog
from sailor.model.hardware import Market, Offer
from sailor.model.job import Job
from sailor.sources.availability import FileAvailability, StaticAvailability

JOB = Job.model_validate(
    {
        "name": "test",
        "model": "opt-350m",
        "training": {"global_batch": 64},
        "pool": [{"zone": "us-central1-a", "node_type": "a2-highgpu-4g", "count": 2}],
    }
)


def context(path: Path | None = None) -> SourceContext:
    return SourceContext(Catalog.builtin(), path)


def test_static_is_the_jobs_pool() -> None:
    assert StaticAvailability().offers(JOB, context()) == JOB.pool


def test_a_quota_file_replaces_the_pool(tmp_path: Path) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text(
        "pool:\n"
        "  - {zone: us-central1-a, node_type: a2-highgpu-4g, count: 3}\n"
        "  - {region: europe-west4, gpu: V100-16GB, quota: 64, market: spot}\n",
        encoding="utf-8",
    )
    assert FileAvailability().offers(JOB, context(path)) == (
        Offer(zone="us-central1-a", node_type="a2-highgpu-4g", count=3),
        Offer(region="europe-west4", gpu="V100-16GB", quota=64, market=Market.SPOT),
    )


def test_without_a_file_the_error_says_how_to_name_one() -> None:
    with pytest.raises(InputError) as caught:
        FileAvailability().offers(JOB, context())
    assert str(caught.value) == (
        "test: sources.availability: the availability source 'file' has no file; "
        "write `availability: {file: quotas.yaml}`"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pool:\n  - {zone: a, node_type: n, count: 0}\n", "every offer of the pool has quota 0"),
        (
            "pool:\n  - {zone: a, gpu: T4-16GB, quota: 4}\n  - {zone: a, gpu: T4-16GB, quota: 8}\n",
            "quotas.yaml:3: pool[1] repeats pool[0] (T4-16GB on_demand in a); write one offer",
        ),
        ("pool:\n  - {zone: a, gpu: T4-16GB, quota: -1}\n", "should be at least 0, not -1"),
        ("pool:\n  - {zone: a, gpu: T4-16GB, qouta: 4}\n", "did you mean 'quota'"),
        ("pool: []\n", "pool should have at least 1 entry"),
        ("offers: []\n", "unknown key 'offers'"),
    ],
)
def test_faults_are_told_with_their_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        FileAvailability().offers(JOB, context(path))
    assert told in str(caught.value)
    assert "quotas.yaml:" in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        FileAvailability().offers(JOB, context(tmp_path / "none.yaml"))
    assert "none.yaml: no such file" in str(caught.value)
