"""`sailor plan` and `sailor simulate`: outputs, exit codes, Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from toy_jobs import ROOT, TOY, command, start, write_job

from sailor.cli import run
from sailor.cli.search_progress import progress_text
from sailor.interfaces import Progress
from sailor.model.files import load_record
from sailor.model.result import Result


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process."""
    code = run(["--plugin", str(TOY), *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def plan(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str, *options: object, **changes: Any
) -> tuple[int, str, str]:
    path = write_job(folder, name, **changes)
    return call(capsys, "plan", path, "--planner", "toy", *options)


def test_json_is_the_result_record(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = plan(capsys, tmp_path, "one", "--format", "json")
    assert (code, err) == (0, "")
    result = Result.model_validate_json(out)
    assert result.status == "optimal"
    assert result.plan is not None
    assert (result.plan.pp, result.plan.dp, result.plan.num_gpus) == (1, 1, 1)
    assert result.estimate is not None
    assert result.estimate.samples == 8
    assert json.loads(out) == result.model_dump(mode="json")


def test_the_table_shows_what_the_record_holds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, as_json, _ = plan(capsys, tmp_path, "one", "--format", "json")
    code, out, err = plan(capsys, tmp_path, "one")
    assert (code, err) == (0, "")
    estimate = Result.model_validate_json(as_json).estimate
    assert estimate is not None
    assert all(len(line) <= 100 for line in out.splitlines())
    assert "one: optimal, the best plan of the search space" in out
    assert f"{estimate.iteration_s:.4g}"[:4] in out
    assert "1/1 A100-40GB" in out
    assert "emb + 1..24 + head" in out
    memory = estimate.memory[0]
    columns = (memory.total_bytes, memory.bound_bytes, memory.capacity_bytes)
    assert " ".join(f"{value / 2**30:.2f}" for value in columns) in " ".join(out.split())
    assert "- toy-rule" in out


def test_csv_has_one_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = plan(capsys, tmp_path, "one", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, len(rows)) == (0, 1)
    assert rows[0]["job"] == "one"
    assert float(rows[0]["iterations_per_s"]) == pytest.approx(1 / float(rows[0]["iteration_s"]))
    assert rows[0]["gpus_used"] == "1"


def test_a_plugin_s_format_is_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert plan(capsys, tmp_path, "one", "--format", "lines") == (0, "line: one\n", "")
    code, out, err = plan(capsys, tmp_path, "one", "--format", "linez")
    assert (code, out) == (2, "")
    assert err == "sailor: --format: unknown report format 'linez'; did you mean 'lines'?\n"


def test_out_writes_a_file_that_simulate_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out_file = tmp_path / "plan.json"
    code, out, err = plan(capsys, tmp_path, "one", "--out", out_file)
    assert (code, out) == (0, "")
    assert f"written to {out_file}" in err
    result = load_record(Result, out_file)
    job = tmp_path / "one.json"
    code, out, _ = call(capsys, "simulate", job, out_file, "--format", "json")
    assert code == 0
    assert result.estimate is not None
    assert json.loads(out) == result.estimate.model_dump(mode="json")
    bare = tmp_path / "bare.json"
    assert result.plan is not None
    bare.write_text(result.plan.model_dump_json())
    code, table, _ = call(capsys, "simulate", job, bare)
    assert code == 0
    assert "one: this plan can be run" in table
    assert "Memory of one GPU (GiB)" in table
    assert all(len(line) <= 100 for line in table.splitlines())


def test_simulate_names_violations_and_says_three(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan_file = tmp_path / "p.json"
    plan(capsys, tmp_path, "one", "--out", plan_file)
    dear = write_job(tmp_path, "dear", constraints={"max_usd_per_iteration": 1e-6})
    code, out, _ = call(capsys, "simulate", dear, plan_file)
    assert code == 3
    assert "dear: this plan can't be run" in out
    assert "is over max_usd_per_iteration 1e-06" in out


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nope", 3, "nope: infeasible, no plan exists"),
        ("none", 4, "none: no_plan, no plan found within the limit"),
    ],
)
def test_no_plan_is_an_answer_with_reasons(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, code: int, words: str
) -> None:
    found, out, err = plan(capsys, tmp_path, name)
    assert (found, err) == (code, "")
    assert words in out
    assert "Why\n  - the toy " in out
    found, out, _ = plan(capsys, tmp_path, name, "--format", "csv")
    assert found == code
    assert f",the toy {'says no' if name == 'nope' else 'found none'}," in out


def test_bad_input_is_one_placed_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pool = [{"zone": "us-central1-z", "gpu": "A100-40GB", "quota": 4}]
    code, out, err = plan(capsys, tmp_path, "far", pool=pool)
    assert (code, out) == (2, "")
    line = 1 + (tmp_path / "far.json").read_text().split('"zone"')[0].count("\n")
    assert err.startswith(f"sailor: {tmp_path}/far.json:{line}: pool[0].zone: unknown zone ")
    assert err.count("\n") == 1
    code, _, err = plan(capsys, tmp_path, "refuse")
    assert code == 2
    assert "planner 'toy' can't take this job: it refuses" in err


def test_usage_errors_name_the_help(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = write_job(tmp_path)
    for arguments, words in (
        (("plan",), "missing argument 'JOB'; see `sailor plan --help`"),
        (("plna", job), "no such command 'plna'"),
        (("plan", job, "--sede", "1"), "no such option '--sede'"),
        (("plan", job, "--objective", "fast"), "'fast' is not one of"),
        (("plan", job, "--time-limit", "nan"), "nan is not a number of seconds above 0"),
        (("plan", job, "--time-limit", "0"), "0 is not a number of seconds above 0"),
        (("plan", job, "--seed", "-1"), "-1 is not in the range"),
        (("plan", job, "--gap", "2"), "'2' is neither a percentage nor a number from 0 to 1"),
        (("plan", job, "--gap", "x%"), "'x%' is neither a percentage nor a number from 0 to 1"),
        (("simulate", "-", "-"), "JOB and PLAN can't both be standard input"),
        (("catalog", "prices", "--price-file", "x"), "--price-file goes with --source NAME"),
        (("plan", job, "--planner", "tay"), "unknown planner 'tay'; did you mean 'toy'?"),
        (("plan", job, "--out", tmp_path), "is a folder; name a file in it"),
        (("plan", job, "--out", tmp_path / "no" / "x"), "create it first"),
        (("--plugin", tmp_path / "no.py", "plan", job), "no such plug-in file"),
    ):
        code, out, err = call(capsys, *arguments)
        assert (code, out) == (2, ""), err
        assert words in err
        assert err.startswith("sailor: ")
        assert err.count("\n") == 1


def test_a_broken_plugin_that_was_asked_for_ends_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    code, out, err = call(capsys, "--plugin", broken, "plan", write_job(tmp_path))
    assert (code, out) == (6, "")
    assert f"{broken}: the plug-in can't be used: ModuleNotFoundError" in err
    code, out, _ = call(capsys, "--plugin", broken, "plugins")
    assert code == 0
    assert "broken" in out


def test_a_plugin_s_fault_is_one_sentence_and_a_traceback_only_on_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = plan(capsys, tmp_path, "boom")
    assert (code, out) == (6, "")
    assert err.count("\n") == 1
    assert err.startswith("sailor: the plug-in toy_plugin_")
    assert " failed (ZeroDivisionError: toy planner fell over at toy_plugin.py:" in err
    code = run(["--debug", "--plugin", str(TOY), "plan", str(tmp_path / "boom.json"),
                "--planner", "toy"])  # fmt: skip
    assert code == 6
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_asks_for_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_over(job: Any, **options: Any) -> None:
        raise KeyError("no such\nthing")

    monkeypatch.setattr("sailor.api.optimize", fall_over)
    code, out, err = plan(capsys, tmp_path, "one")
    assert (code, out) == (1, "")
    assert err == (
        "sailor: this is a bug in sailor (KeyError: 'no such\\nthing' at test_cli_plan.py:"
        f"{fall_over.__code__.co_firstlineno + 1}); please report it with the input and what "
        "`sailor doctor` prints; --debug shows the traceback\n"
    )


def test_standard_input_is_a_job(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    done = subprocess.run(
        command("plan", "-", "--planner", "toy", "--format", "lines"),
        input=path.read_text(), capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "line: toy\n"), done.stderr
    bad = subprocess.run(
        command("plan", "-"), input="name: [", capture_output=True, text=True, timeout=60,
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert bad.returncode == 2
    assert bad.stderr.startswith("sailor: <stdin>:1: this is not valid YAML")


def until(log: Path, name: str) -> None:
    """Wait until a search has begun."""
    for _ in range(3000):
        if log.exists() and name in log.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"no search of {name} began")


def test_the_first_ctrl_c_gives_the_best_plan_so_far(tmp_path: Path) -> None:
    path, log = write_job(tmp_path, "wait"), tmp_path / "log"
    process = start("plan", path, "--planner", "toy", "--format", "json", TOY_LOG=str(log))
    until(log, "wait")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    result = Result.model_validate_json(out)
    assert result.plan is not None
    assert result.stopped_early
    assert err == "sailor: stopping with the best plan so far (Ctrl-C again aborts)\n"


def test_ctrl_c_without_a_plan_and_a_second_ctrl_c_say_130(tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = write_job(tmp_path, "wait-empty")
    process = start("plan", path, "--planner", "toy", TOY_LOG=str(log))
    until(log, "wait-empty")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "wait-empty: no_plan" in out
    stubborn = tmp_path / "stubborn.py"
    text = TOY.read_text().replace("and not should_stop()", "").replace('"toy"', '"stubborn"')
    stubborn.write_text(text.replace('name = "lines"', 'name = "other"'))
    path = write_job(tmp_path, "wait-on")
    process = start(
        "--plugin", stubborn, "plan", path, "--planner", "stubborn", TOY_LOG=str(log)
    )  # fmt: skip
    until(log, "wait-on")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("sailor: interrupted\n")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    process = start("schema", "result")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 141
    assert err == ""


def test_the_seed_and_limits_reach_the_planner(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sailor.api

    seen: dict[str, Any] = {}
    real = sailor.api.optimize

    def spy(job: Any, **options: Any) -> Any:
        seen.update(options)
        return real(job, **options)

    monkeypatch.setattr(sailor.api, "optimize", spy)
    options = ("--seed", "7", "--time-limit", "2.5", "--without-rule", "a", "--without-rule", "b",
               "--gap", "0.5%")  # fmt: skip
    code, *_ = plan(capsys, tmp_path, "one", *options, "--objective", "min_cost", "--strict")
    assert seen["limits"].seed == 7
    assert seen["limits"].wall_s == 2.5
    assert seen["limits"].gap == 0.005
    assert seen["limits"].disabled_rules == ("a", "b")
    assert (seen["objective"], seen["strict"]) == ("min_cost", True)
    assert code in (0, 2)


def test_the_job_s_own_paths_are_relative_to_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    code, _, err = plan(capsys, folder, "one", sources={"prices": {"file": "my-prices.yaml"}})
    assert code == 2
    assert f"{folder}/my-prices.yaml: no such file" in err


@pytest.mark.parametrize(("format_", "shown"), [("lines", True), ("json", False)])
def test_progress_goes_to_a_terminal_and_data_to_stdout(
    tmp_path: Path, format_: str, shown: bool
) -> None:
    path, log = write_job(tmp_path, "wait"), tmp_path / "log"
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        command("plan", path, "--planner", "toy", "--format", format_),
        stdout=subprocess.PIPE, stderr=theirs, text=True, cwd=ROOT,
        env={**os.environ, "TOY_LOG": str(log), "TERM": "xterm"},
    )  # fmt: skip
    until(log, "wait")
    seen = b""
    while shown and b"toy search, best 1, 1 plans, " not in seen:
        seen += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    os.close(theirs)
    if not shown:
        seen = os.read(ours, 4096)
        assert seen == b"sailor: stopping with the best plan so far (Ctrl-C again aborts)\r\n"
    os.close(ours)
    assert process.returncode == 0
    assert out == "line: wait\n" if shown else Result.model_validate_json(out).stopped_early


def test_the_progress_line_says_incumbent_bound_gap_cells_and_seconds() -> None:
    full = Progress("bounds", 0.41753, 1234, bound=0.42, gap=0.00588, cells_left=12)
    assert progress_text(full, 3.4) == (
        "bounds, best 0.4175, bound 0.42, gap 0.59%, 12 cells left, 1,234 plans, 3 s"
    )
    assert progress_text(Progress("probing"), 0.2) == "probing, 0 s"


def test_ctrl_c_ends_a_real_search_with_a_plan_and_its_bound(tmp_path: Path) -> None:
    pool = [
        {"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 8},
        {"zone": "us-central1-a", "gpu": "V100-16GB", "quota": 16},
    ]
    path = write_job(tmp_path, "mixed", pool=pool, training={"global_batch": 64,
                                                           "precision": "fp32"})  # fmt: skip
    process = start("plan", path, "--planner", "cpsat", "--gap", "0", "--format", "json")
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    result = Result.model_validate_json(out)
    assert result.plan is not None
    assert result.stopped_early


def test_a_gap_that_a_planner_can_t_know_is_said_to_have_no_effect(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = plan(capsys, tmp_path, "one", "--gap", "1%")
    assert code == 0
    assert err == "sailor: --gap 0.01 had no effect: toy proved no bound for this job\n"
