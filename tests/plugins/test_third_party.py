"""The example plug-in, installed as a stranger's package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sailor
from sailor.registry import Registry

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "third_party_plugin"

LIST = """
import json
from sailor.registry import Registry
print(json.dumps([vars(p) for p in Registry.load().plugins(check=True)]))
"""
RESOLVE = """
import sys, sailor
print(sailor.build_problem(sys.argv[1]).model_dump_json())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which the example is installed with pip, beside sailor."""
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
            "--no-build-isolation", "--disable-pip-version-check", "--target", target, EXAMPLE,
        ],
        check=True, capture_output=True, timeout=110,
    )  # fmt: skip
    env = {key: value for key, value in os.environ.items() if key != "SAILOR_PLUGINS"}
    return {**env, "PYTHONPATH": str(target)}


def run(code: str, env: dict[str, str], *arguments: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_found_after_pip_install(installed: dict[str, str]) -> None:
    listed = {info["name"]: info for info in run(LIST, installed)}
    assert listed["acme"] == {
        "name": "acme",
        "version": "0.1.0",
        "origin": "sailor-acme-cloud 0.1.0",
        "hooks": ["sailor_network_models", "sailor_price_sources"],
        "error": None,
    }
    assert listed["sailor"]["error"] is None


def test_it_is_not_there_without_installing() -> None:
    assert "acme" not in Registry.load(entry_points=False).price_sources


def test_its_job_resolves_with_its_prices_and_links(installed: dict[str, str]) -> None:
    problem = run(RESOLVE, installed, str(EXAMPLE / "job.yaml"))
    rows = {(p["node_type"], p["market"]): p["usd_per_hour"] for p in problem["placements"]}
    assert rows == {("acme-a100-4", "on_demand"): 12.0, ("acme-v100-4", "on_demand"): 7.2}
    links = {(link["src"], link["dst"]): link["bandwidth"] for link in problem["links"]}
    assert links == {
        ("acme-east-1", "acme-east-1"): 12.5e9,
        ("acme-east-1", "acme-west-1"): 1.25e9,
        ("acme-west-1", "acme-east-1"): 1.25e9,
        ("acme-west-1", "acme-west-1"): 12.5e9,
    }
    egress = {(row["src"], row["dst"]): row["usd_per_byte"] for row in problem["egress"]}
    assert egress["acme-east-1", "acme-west-1"] == 1e-11
    assert egress["acme-east-1", "acme-east-1"] == 0
    assert any("Acme does not rent acme-v100-4 spot" in line for line in problem["excluded"])


def test_the_file_alone_plans_its_job() -> None:
    registry = Registry.load(entry_points=False, files=[EXAMPLE / "sailor_acme_cloud.py"])
    result = sailor.optimize(EXAMPLE / "job.yaml", objective="min_cost", registry=registry)
    assert result.plan is not None
    assert result.estimate is not None
    assert {node.price_source for node in result.estimate.nodes} == {"Acme price list, 2026-11-01"}
    rent = {"acme-a100-4": 12.0, "acme-v100-4": 7.2}
    for node in result.estimate.nodes:
        assert node.usd_per_hour == pytest.approx(rent[node.node_type] * node.count)
