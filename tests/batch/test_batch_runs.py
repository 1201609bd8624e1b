"""`sailor batch`: what runs, what is left alone, what fails and how it is told."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from toy_jobs import TOY, toy_job, write_job

from sailor.batch.inputs import expand
from sailor.batch.manifest import Entry
from sailor.batch.run import Tally
from sailor.batch.work import Options, Worker
from sailor.cli import run
from sailor.cli.batch import dry_run_text, summary_text
from sailor.interfaces import Limits
from sailor.model.files import load_record
from sailor.model.result import Result
from sailor.registry import Registry

REGISTRY = Registry.load(files=[TOY])


class Batch:
    """A folder of jobs, its output, and the log of the searches."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.jobs = folder / "jobs"
        self.out = folder / "out"
        self.log = folder / "log"
        self.jobs.mkdir()

    def add(self, *names: str, **changes: Any) -> None:
        for name in names:
            write_job(self.jobs, name, **changes)

    def run(self, *options: object, inputs: tuple[object, ...] = ()) -> tuple[int, str]:
        """Run the command with one worker process and return its exit code and summary."""
        arguments = (
            "--plugin", TOY, "batch", *(inputs or (self.jobs,)), "--out", self.out,
            "--planner", "toy", "--workers", 1, *options,
        )  # fmt: skip
        code = run([str(argument) for argument in arguments])
        out, err = self.capsys.readouterr()
        assert "Traceback" not in err, err
        assert err == "" or err.startswith("sailor: "), err
        return code, out or err

    def work(self, *, inputs: tuple[object, ...] = (), **options: Any) -> str:
        """Run the jobs in this process, which is quicker, and return the summary."""
        limits = options.pop("limits", Limits())
        given = Options(planner="toy", limits=limits, **options)
        worker = Worker(self.out, given, REGISTRY)
        jobs = expand([str(path) for path in inputs or (self.jobs,)], self.out)
        if not given.dry_run:
            worker.manifest.create()
        tally = Tally(len(jobs))
        for job in jobs:
            tally.add(worker.run(job))
        text = dry_run_text(tally) if given.dry_run else summary_text(tally, self.out)
        return " ".join(text.split())

    def searched(self) -> list[str]:
        """Return the jobs searched since the last time asked, sorted."""
        names = self.log.read_text().split() if self.log.exists() else []
        self.log.write_text("")
        return sorted(names)

    def entries(self) -> list[Entry]:
        lines = (self.out / "manifest.jsonl").read_text().splitlines()
        return [Entry.model_validate_json(line) for line in lines]

    def results(self) -> dict[str, Result]:
        return {path.name: load_record(Result, path) for path in (self.out / "results").iterdir()}


@pytest.fixture
def batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Batch:
    found = Batch(tmp_path, capsys)
    monkeypatch.setenv("TOY_LOG", str(found.log))
    return found


def test_every_job_gets_its_result_and_an_untouched_one_is_left_alone(batch: Batch) -> None:
    batch.add("a", "b", "c")
    code, out = batch.run()
    assert (code, batch.searched()) == (0, ["a", "b", "c"])
    assert out == f"3 of 3 jobs: 3 optimal; results in {batch.out}\n"
    results = batch.results()
    assert sorted(result.job for result in results.values()) == ["a", "b", "c"]
    for entry in batch.entries():
        assert entry.result is not None
        result = results[Path(entry.result).name]
        assert (entry.name, entry.status, entry.exit_code) == (result.job, "optimal", 0)
        assert entry.problem_digest == result.problem_digest
        assert entry.result == f"results/{entry.name}-{entry.key[:12]}.json"
    code, out = batch.run()
    assert (code, batch.searched()) == (0, [])
    assert "3 of 3 jobs: 3 up to date" in out
    assert len(batch.entries()) == 3


def test_an_edited_job_a_new_price_and_other_options_run_again(
    batch: Batch, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"

    def price(usd_per_hour: float) -> None:
        prices.write_text(
            "source: me\nas_of: 2026-11-01\nprices:\n"
            f"- {{gpu: A100-40GB, usd_per_gpu_hour: {usd_per_hour}}}\n"
        )

    price(2.0)
    batch.add("a", "b")
    batch.add("priced", sources={"prices": {"file": "../prices.yaml"}})
    out = batch.work()
    assert batch.searched() == ["a", "b", "priced"], out
    batch.add("b", training={"global_batch": 9, "precision": "fp32"})
    out = batch.work(dry_run=True)
    assert "1 of 3 jobs would run" in out
    assert "the job, a figure it uses or an option changed" in out
    assert batch.searched() == []
    batch.work()
    assert batch.searched() == ["b"]
    text = json.loads((batch.jobs / "a.json").read_text())
    (batch.jobs / "a.json").write_text(json.dumps(text))  # same content, other layout
    price(3.0)
    batch.work()
    assert batch.searched() == ["priced"]
    batch.work(limits=Limits(seed=1))
    assert batch.searched() == ["a", "b", "priced"]
    batch.work(objective="min_cost")
    assert batch.searched() == ["a", "b", "priced"]
    batch.work()
    assert batch.searched() == []


def test_a_result_file_that_is_gone_is_made_again(batch: Batch) -> None:
    batch.add("a", "b")
    batch.work()
    batch.searched()
    next((batch.out / "results").glob("a-*")).unlink()
    out = batch.work(dry_run=True)
    assert "its result file is gone" in out
    batch.work()
    assert batch.searched() == ["a"]
    assert len(batch.results()) == 2


def test_failures_are_told_and_the_rest_goes_on(batch: Batch) -> None:
    batch.add("a", "boom", "crash", "none", "nope", "refuse", "z")
    (batch.jobs / "cut.yaml").write_text("name: cut\nmodel: opt-350m\npool: [{zone: ")
    (batch.jobs / "typo.json").write_text(json.dumps(toy_job("typo", modle="x"), indent=1))
    code, out = batch.run()
    assert code == 5
    assert batch.searched() == ["a", "boom", "crash", "none", "nope", "z"]
    assert out.startswith("9 of 9 jobs: 5 failed, 1 infeasible, 1 no plan, 2 optimal; ")
    told = " ".join(out.split())
    jobs = batch.jobs
    typo_line = 1 + (jobs / "typo.json").read_text().split('"modle"')[0].count("\n")
    for sentence in (
        f"- {jobs}/boom.json: the plug-in toy_plugin_",
        "failed (ZeroDivisionError: toy planner fell over at toy_plugin.py:",
        f"- {jobs}/crash.json: the worker process of this job died (",
        f"- {jobs}/cut.yaml:3: this is not valid YAML: ",
        f"- {jobs}/none.json: none: no_plan: the toy found none",
        f"{jobs}/refuse.json: planner: planner 'toy' can't take this job: it refuses; ",
        f"- {jobs}/typo.json:{typo_line}: unknown key 'modle'; did you mean 'model'?",
        f"Infeasible - {jobs}/nope.json: nope: infeasible: the toy says no",
    ):
        assert sentence in told, out
    by_name = {entry.name: entry for entry in batch.entries()}
    codes = {name: entry.exit_code for name, entry in by_name.items()}
    assert codes == {
        "a": 0, "z": 0, "boom": 6, "crash": 1, "none": 4, "nope": 3, "refuse": 2, "typo": 2,
        f"{jobs}/cut.yaml": 2,
    }  # fmt: skip
    assert by_name["crash"].problem_digest is None
    assert by_name["crash"].result is None


def test_failed_jobs_wait_for_retry_or_an_edit(batch: Batch) -> None:
    batch.add("a", "boom", "none", "nope")
    (batch.jobs / "typo.json").write_text(json.dumps(toy_job("typo", modle="x")))
    batch.work()
    batch.searched()
    lines = len(batch.entries())
    out = batch.work()
    assert (batch.searched(), len(batch.entries())) == ([], lines)
    assert "3 failed before, 2 up to date" in out
    assert "toy planner fell over" in out
    out = batch.work(dry_run=True, retry_failed=True)
    assert "2 of 5 jobs would run" in out
    assert "failed before" in out
    batch.work(retry_failed=True)
    assert batch.searched() == ["boom", "none"]
    (batch.jobs / "boom.json").write_text(json.dumps(toy_job("calm")))
    batch.work()
    assert batch.searched() == ["calm"]
    (batch.jobs / "typo.json").write_text(json.dumps(toy_job("typo")))
    batch.work()
    assert batch.searched() == ["typo"]


def test_json_lines_folders_and_twins(batch: Batch, tmp_path: Path) -> None:
    nested = batch.jobs / "deep" / "deeper"
    nested.mkdir(parents=True)
    write_job(nested, "deep")
    (nested / "deep.yml").write_text(json.dumps(toy_job("deep")))  # the same job again
    (batch.jobs / "prices.yaml").write_text("source: me\nprices: []\n")
    (batch.jobs / ".hidden.json").write_text("{")
    lines = tmp_path / "many.jsonl"
    rows = [
        json.dumps(toy_job("line1")),
        "",
        json.dumps(toy_job("line3", pool=[])),
        '{"name": "cut',
        json.dumps(toy_job("deep", training={"global_batch": 3, "precision": "fp32"})),
        "name: yaml",
    ]
    lines.write_text("\n".join(rows))
    told = batch.work(inputs=(batch.jobs, lines))
    assert batch.searched() == ["deep", "deep", "line1"]
    assert "8 of 8 jobs: 3 failed, 1 not a job, 3 optimal, 1 up to date" in told
    assert f"- {lines}:3: pool should have at least 1 entry, not 0" in told
    assert f"- {lines}:4: this is not valid JSON: unterminated string" in told
    assert f"- {lines}:6: this is not valid JSON: expecting value" in told
    assert sorted(r.job for r in batch.results().values()) == ["deep", "deep", "line1"]
    told = batch.work(inputs=(batch.jobs, lines))
    assert batch.searched() == []
    assert "3 failed before, 1 not a job, 4 up to date" in told


def test_the_batch_s_own_results_are_no_jobs(batch: Batch) -> None:
    batch.out = batch.jobs / "out"
    batch.add("a")
    batch.work()
    assert batch.searched() == ["a"]
    out = batch.work()
    assert batch.searched() == []
    assert out.startswith("1 of 1 jobs: 1 up to date")


def test_input_errors_of_the_batch_itself(batch: Batch, tmp_path: Path) -> None:
    code, told = batch.run()
    assert code == 2
    assert f"{batch.jobs}: no job is found; name files, or folders with " in told
    batch.add("a")
    assert "standard input is no input of a batch" in batch.run(inputs=("-",))[1]
    code, told = batch.run(inputs=(tmp_path / "no.jsonl",))
    assert code == 2
    assert "no.jsonl: can't be read: no such file or directory" in told
    code, told = batch.run(inputs=(tmp_path / "no.yaml",))
    assert code == 5
    assert "no.yaml: no such file" in told
    code, told = batch.run("--planner", "tay")
    assert code == 2
    assert "unknown planner 'tay'; did you mean 'toy'?" in told
    blocked = tmp_path / "file"
    blocked.write_text("")
    batch.out = blocked / "sub"
    code, told = batch.run()
    assert code == 2
    assert "can't be made a batch folder" in told


def test_a_dry_run_writes_nothing(batch: Batch) -> None:
    batch.add("a")
    (batch.jobs / "cut.yaml").write_text("name: [")
    code, out = batch.run("--dry-run")
    assert not batch.out.exists()
    told = " ".join(out.split())
    assert code == 0
    assert "2 of 2 jobs would run" in told
    assert "it would fail:" in told


@pytest.mark.slow
def test_two_hundred_small_jobs_take_under_a_minute(batch: Batch) -> None:
    for n in range(200):
        batch.add(f"job{n}", training={"global_batch": 8 + n, "precision": "fp32"})
    began_s = time.monotonic()
    code, out = batch.run("--workers", 2)
    took_s = time.monotonic() - began_s
    assert code == 0
    assert "200 of 200 jobs: 200 optimal" in out
    assert len(batch.searched()) == 200
    assert len(batch.entries()) == 200
    assert took_s < 60
    assert len(batch.results()) == 200
