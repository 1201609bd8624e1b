"""Batches that are killed, interrupted, and run by two at once: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_jobs import TOY, sailor, start, toy_job, write_job

from sailor.batch.inputs import expand
from sailor.batch.manifest import Entry, Manifest
from sailor.batch.work import Options, Worker
from sailor.errors import InputError
from sailor.interfaces import Limits
from sailor.model.files import load_record
from sailor.model.result import Result
from sailor.registry import Registry


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something has come about."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it did not come about in time"
        time.sleep(0.01)


def entries(out: Path) -> list[Entry]:
    """Return the whole lines of a manifest that may still be written to."""
    path = out / "manifest.jsonl"
    text = path.read_text() if path.exists() else ""
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [Entry.model_validate_json(line) for line in whole]


def searches(log: Path) -> Counter[str]:
    return Counter(log.read_text().split() if log.exists() else ())


def batch_of(folder: Path, jobs: Path, log: Path, workers: int = 2) -> subprocess.Popen[str]:
    return start(
        "batch", jobs, "--out", folder / "out", "--planner", "toy", "--workers", workers,
        TOY_LOG=str(log),
    )  # fmt: skip


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs."""
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *children(int(child))]
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs"
    folder.mkdir()
    return folder


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_batch_of_thirty_survives_kill_nine(tmp_path: Path, jobs: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    good = [f"slow{n:02}" for n in range(28)]
    for name in good:
        write_job(jobs, name)
    (jobs / "slow28.yaml").write_text("name: slow28\nmodel: opt-350m\npool: [{zone: ")
    write_job(jobs, "slow29", training={"global_batch": 0})
    process = batch_of(tmp_path, jobs, log)
    until(lambda: len(entries(out)) >= 8)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: not any(map(alive, workers)), 5)
    done = {entry.name for entry in entries(out)}
    assert 8 <= len(done) < 28
    code, told, err = sailor(
        "batch", jobs, "--out", out, "--planner", "toy", "--workers", 2, TOY_LOG=str(log)
    )
    assert code == 5, err
    assert all(searches(log)[name] == 1 for name in done)
    assert sum(searches(log).values()) <= 28 + 2  # the two that were under way began again
    names = [entry.name for entry in entries(out) if not entry.failed]
    assert sorted(names) == good
    results = [load_record(Result, path) for path in (out / "results").glob("*.json")]
    assert sorted(result.job for result in results) == good
    assert told.startswith(f"30 of 30 jobs: 2 failed, {28 - len(done)} optimal, {len(done)} up to")
    text = " ".join(told.split())
    assert f"- {jobs}/slow28.yaml:3: this is not valid YAML: expected the node content" in text
    line = 1 + (jobs / "slow29.json").read_text().split('"global_batch"')[0].count("\n")
    assert f"- {jobs}/slow29.json:{line}: training.global_batch should be at least 1, not 0" in text


def test_two_writers_do_nothing_twice(tmp_path: Path, jobs: Path) -> None:
    log = tmp_path / "log"
    names = [f"slow{n:02}" for n in range(10)]
    for name in names:
        write_job(jobs, name)
    both = [batch_of(tmp_path, jobs, log, workers=1) for _ in range(2)]
    told = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert searches(log) == Counter(names)
    assert sorted(entry.name for entry in entries(tmp_path / "out")) == names
    assert len(list((tmp_path / "out" / "results").iterdir())) == 10
    for out, _ in told:
        assert out.startswith("10 of 10 jobs: ")


def test_a_crash_is_blamed_on_its_job_and_retried_on_request(tmp_path: Path, jobs: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    for name in ("a", "crash", "slow", "z"):
        write_job(jobs, name)
    batch = ("batch", jobs, "--out", out, "--planner", "toy", "--workers", 2)
    code, told, _ = sailor(*batch, TOY_LOG=str(log))
    assert code == 5
    assert told.startswith("4 of 4 jobs: 1 failed, 3 optimal")
    code, told, _ = sailor(*batch, TOY_LOG=str(log))
    assert told.startswith("4 of 4 jobs: 1 failed before, 3 up to date")
    assert searches(log) == Counter(["a", "crash", "slow", "z"])
    code, told, _ = sailor(*batch, "--retry", "failed", TOY_LOG=str(log))
    assert code == 5
    assert searches(log) == Counter(["a", "crash", "crash", "slow", "z"])


def test_ctrl_c_finishes_what_runs_and_the_rest_is_left(tmp_path: Path, jobs: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    for n in range(12):
        write_job(jobs, f"slow{n:02}")
    process = batch_of(tmp_path, jobs, log, workers=1)
    until(lambda: len(entries(out)) >= 2)
    process.send_signal(signal.SIGINT)
    told, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "sailor: finishing the running jobs (Ctrl-C again aborts)\n"
    done = len(entries(out))
    assert done < 12
    assert sum(searches(log).values()) == done
    assert f"{12 - done} jobs are left: run the same command to go on" in told


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, jobs: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    write_job(jobs, "wait")  # its search never ends by itself
    process = batch_of(tmp_path, jobs, log, workers=1)
    until(lambda: searches(log))
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.endswith("sailor: interrupted\n")
    assert entries(out) == []
    until(lambda: not any(map(alive, workers)), 5)


def worker(folder: Path) -> Worker:
    made = Worker(folder, Options("toy", Limits()), Registry.load(files=[TOY]))
    made.manifest.create()
    return made


def test_a_line_that_a_kill_cut_is_repaired(
    tmp_path: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    monkeypatch.setenv("TOY_LOG", str(log))
    for name in ("a", "b", "c"):
        write_job(jobs, name)
    inputs = expand([str(jobs)], out)
    for job in inputs[:2]:
        worker(out).run(job)
    manifest = out / "manifest.jsonl"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole + whole[:100])  # an entry that was being written
    assert worker(out).run(inputs[0]).what == "up_to_date"
    assert worker(out).run(inputs[2]).what == "done"
    assert manifest.read_bytes().startswith(whole)
    assert [entry.name for entry in entries(out)] == ["a", "b", "c"]
    manifest.write_bytes(manifest.read_bytes()[: len(whole) - 7])  # now b's own line is cut
    assert worker(out).run(inputs[1]).what == "done"  # found again by its result file
    assert worker(out).run(inputs[2]).what == "done"
    assert [entry.name for entry in entries(out)] == ["a", "b", "c"]
    assert searches(log) == Counter(["a", "b", "c"])


def test_lines_that_are_no_entries_are_passed_over(tmp_path: Path, jobs: Path) -> None:
    write_job(jobs, "a")
    out = tmp_path / "out"
    job = expand([str(jobs)], out)[0]
    worker(out).run(job)
    manifest = out / "manifest.jsonl"
    manifest.write_bytes(b'\xff\xfe\n{"key": 1}\n\n' + manifest.read_bytes())
    again = worker(out)
    assert again.run(job).what == "up_to_date"
    assert again.manifest.unreadable_lines == 3


def test_a_torn_start_without_any_newline_is_dropped(tmp_path: Path) -> None:
    manifest = worker(tmp_path).manifest
    manifest.path.write_bytes(b"x" * 10_000)
    entry = Entry(
        key="0" * 64, name="a", origin="a", status="failed", exit_code=1, planner="toy",
        sailor_version="1", wall_s=0.0, finished_at="",
    )  # fmt: skip
    manifest.append(entry)
    assert entries(tmp_path) == [entry]
    fresh = Manifest(tmp_path)
    fresh.refresh()
    assert fresh.find("0" * 64) == entry


def test_a_claimed_job_is_left_to_the_other_process(tmp_path: Path, jobs: Path) -> None:
    write_job(jobs, "a")
    out = tmp_path / "out"
    job = expand([str(jobs)], out)[0]
    first, second = worker(out), worker(out)
    seen: list[str] = []
    first.on_start = lambda key, name: seen.append(second.run(job).what)
    assert first.run(job).what == "done"
    assert seen == ["busy"]
    assert second.run(job).what == "up_to_date"


def test_a_figure_that_changes_during_the_search_fails_the_job(tmp_path: Path, jobs: Path) -> None:
    prices = jobs / "prices.csv"
    header = "gpu,usd_per_gpu_hour,source,as_of\n"
    prices.write_text(header + "A100-40GB,2.0,me,2026-11-01\n")
    path = write_job(jobs, "a", sources={"prices": {"file": "prices.csv"}})
    out = tmp_path / "out"
    job = expand([str(path)], out)[0]
    made = worker(out)
    made.on_start = lambda key, name: prices.write_text(
        header + "A100-40GB,3.0,me,2026-11-01\n"
    ) and None  # fmt: skip
    outcome = made.run(job)
    assert outcome.entry is not None
    assert outcome.entry.error is not None
    assert "a file that this job reads changed while it ran" in outcome.entry.error


def test_a_job_is_read_as_json_lines_only_from_such_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(toy_job()))
    assert expand([str(path), str(path)], tmp_path / "out") == expand([str(path)], tmp_path)
    with pytest.raises(InputError, match="no job is found"):
        expand([str(tmp_path)], tmp_path)
