"""The smaller verbs: help, catalog, plugins, schema, doctor, profile import."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from toy_jobs import ROOT, TOY, toy_job

from sailor.cli import run
from sailor.cli.app import VERBS, verb
from sailor.cli.schema import schema_of
from sailor.model.catalog import Catalog
from sailor.model.presets import presets
from sailor.sim.clusters import CLUSTERS

ARTIFACT = ROOT.parent / "shared" / "reference" / "sosp25_artifact"


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code = run(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert code == 0, err
    return str(out)


def test_help_lists_every_verb_and_the_plugins_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = call(capsys, "--help")
    for name, (_, text) in VERBS.items():
        assert f"  {name} " in out
        assert text[:30] in out
        assert verb(name).help
    assert "gcp" in out
    assert "Exit codes: 0 a plan was found; 1 a bug; 2 bad input" in out
    assert "--time-limit S" in call(capsys, "plan", "--help")


def test_help_loads_no_solver_and_no_verb() -> None:
    code = (
        "import sys\nfrom sailor.cli import run\ncode = run(['--help'])\n"
        "heavy = {'ortools', 'torch', 'numpy', 'pandas', 'numba', 'rich', 'sailor.api',\n"
        "         'sailor.cli.plan', 'sailor.cli.batch'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version") == f"sailor {version('sailor-planner')}\n"


def test_the_catalogue_is_shown_as_tables_and_as_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalog = Catalog.builtin()
    for kind, known in (("gpus", catalog.gpus), ("nodes", catalog.nodes), ("zones", catalog.zones)):
        rows = json.loads(call(capsys, "catalog", kind, "--format", "json"))
        assert [row["name"] for row in rows] == list(known)
        table = call(capsys, "catalog", kind)
        assert all(name in table for name in known)
        assert max(map(len, table.splitlines())) <= 100
    only = json.loads(call(capsys, "catalog", "nodes", "--gpu", "A100-40GB", "--format", "json"))
    assert {row["gpu"] for row in only} == {"A100-40GB"}


def test_the_catalogue_has_models_and_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, known in (("models", presets()), ("clusters", CLUSTERS)):
        rows = json.loads(call(capsys, "catalog", kind, "--format", "json"))
        assert [row["name"] for row in rows] == list(known)
        table = call(capsys, "catalog", kind)
        assert all(f"\n  {name} " in table for name in known)
        assert max(map(len, table.splitlines())) <= 100
    models = call(capsys, "catalog", "models")
    line = next(row for row in models.splitlines() if "mixtral-8x7b" in row)
    assert line.split()[1:10] == ["32", "4096", "32/8", "2", "of", "8", "32768", "46.70", "12.88"]
    line = next(
        row for row in call(capsys, "catalog", "clusters").splitlines() if "mosaic-h100" in row
    )
    assert line.split()[1:6] == ["0.9600", "15.00", "0.9400", "1.630", "2.300"]


def test_prices_come_from_the_price_sources(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--zone", "us-central1-a", "--gpu", "V100-16GB")
    rows = json.loads(
        call(capsys, "catalog", "prices", "--source", "gcp", *options, "--format", "json")
    )
    by_node = {row["node_type"]: row["usd_per_hour"] for row in rows if row["market"] != "spot"}
    # n1-v100-N: one V100 with its host, N times; SkyPilot's catalogue and the paper's host part.
    assert by_node["n1-v100-8"] == pytest.approx(8 * by_node["n1-v100-1"])
    assert {row["zone"] for row in rows} == {"us-central1-a"}
    assert all(row["source"] and row["as_of"] for row in rows)
    table = call(capsys, "catalog", "prices", *options)
    assert "n1-v100-8" in table


def test_plugins_lists_names_and_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = json.loads(call(capsys, "--plugin", TOY, "plugins", "--format", "json"))
    by_name = {row["name"]: row for row in found["plugins"]}
    assert by_name["gcp_pricing"]["error"] is None
    assert by_name["megatron_backend"]["error"] is None
    assert by_name["toy_plugin"]["origin"] == str(TOY)
    assert "toy" in found["provided"]["--planner"]
    assert {"csv", "json", "lines", "table"} <= set(found["provided"]["--format"])
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    table = call(capsys, "--plugin", broken, "plugins")
    assert "broken: ZeroDivisionError: division by zero (at broken.py:1)" in table


def branches(schema: dict[str, Any]) -> set[str]:
    return {part.get("type", "") for part in schema.get("anyOf", [schema])}


def test_schemas_describe_what_people_type(capsys: pytest.CaptureFixture[str]) -> None:
    job = json.loads(call(capsys, "schema", "job"))
    assert job["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(toy_job()) <= set(job["properties"])
    assert job["additionalProperties"] is False
    gpu = job["$defs"]["GpuType"]["properties"]
    assert branches(gpu["memory_bytes"]) == {"integer", "string"}
    assert branches(job["$defs"]["Sources"]["properties"]["prices"]) == {
        "array", "object", "string",
    }  # fmt: skip
    assert branches(job["$defs"]["Training"]["properties"]["global_batch"]) == {"integer"}
    assert branches(job["$defs"]["ClusterRef"]) == {"object", "string"}
    assert set(job["$defs"]["Experts"]["required"]) == {"num_experts", "top_k", "ffn"}
    plan = json.loads(call(capsys, "schema", "plan"))
    assert set(plan["required"]) == {"model", "num_units", "global_batch", "stages"}
    assert "problem_digest" in schema_of("result")["required"]


def test_doctor_names_versions_and_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(call(capsys, "doctor", "--format", "json"))
    assert found["packages"]["sailor-planner"] == version("sailor-planner")
    assert found["packages"]["ortools"] == version("ortools")
    assert found["plugins"]["sailor"].startswith("ok")
    assert found["devices"]
    assert "package pydantic" in call(capsys, "doctor")


def test_doctor_lives_with_a_driver_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    query = tmp_path / "nvidia-smi"
    query.write_text("#!/bin/sh\nexit 9\n")
    query.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = json.loads(call(capsys, "doctor", "--format", "json"))
    assert found["devices"] == ["nvidia-smi fails: CalledProcessError"]
    query.write_text("#!/bin/sh\necho 'Some GPU, 81559 MiB, 570.1'\n")
    found = json.loads(call(capsys, "doctor", "--format", "json"))
    assert found["devices"] == ["Some GPU, 81559 MiB, 570.1"]


@pytest.mark.skipif(not ARTIFACT.is_dir(), reason="needs ../shared/reference/sosp25_artifact")
def test_profile_import_writes_a_store_that_jobs_can_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "store.json"
    code = run(["profile", "import", "--from", "sosp25", str(ARTIFACT), "--out", str(store)])
    out, err = capsys.readouterr()
    assert (code, out) == (0, ""), err
    assert f"written to {store}" in err
    job = toy_job(sources={"profiles": {"store": "store.json"}})
    (tmp_path / "job.json").write_text(json.dumps(job))
    text = call(
        capsys, "--plugin", TOY, "plan", tmp_path / "job.json", "--planner", "toy",
        "--format", "json",
    )  # fmt: skip
    assert json.loads(text)["status"] == "optimal"


def test_profile_import_refuses_other_folders(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out_file = tmp_path / "store.json"
    code = run(["profile", "import", "--from", "sosp25", str(tmp_path), "--out", str(out_file)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"sailor: {tmp_path}: holds no layer times")
    assert not out_file.exists()
