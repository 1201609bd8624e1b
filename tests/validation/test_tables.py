"""Reading truth tables: what is used, what is refused and in which words."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sailor.errors import InputError
from sailor.model.execution import Chunk
from sailor.validation.families import sc21_flop
from sailor.validation.fields import COLUMNS, Refused, read_table
from sailor.validation.functional import _drawn
from sailor.validation.score import RowScore, score_row, validate
from sailor.validation.subject import gpu_of

TRUTH = Path(__file__).parents[3] / "shared" / "truth"
GPT3 = {
    "source": "someone's runs", "model": "GPT", "layers": "96", "hidden": "12288", "heads": "96",
    "vocab": "51200", "seq": "2048", "gpu": "A100-80GB", "n_gpus": "512", "tp": "8", "pp": "8",
    "dp": "8", "mbs": "1", "gbs": "1536", "precision": "bf16", "recompute": "full",
    "measured_iter_s": "55",
}  # fmt: skip


def _table(folder: Path, *rows: dict[str, str], name: str = "runs.csv") -> Path:
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _score(folder: Path, **changed: str) -> RowScore:
    (fields,) = read_table(_table(folder, GPT3 | changed))
    return score_row(fields)


def test_an_unknown_source_is_simulated_with_defaults(tmp_path: Path) -> None:
    row = _score(tmp_path)
    assert row.refused is None
    assert row.subject is not None
    assert row.subject.cluster.name == "unknown"
    assert row.time_error_pct is not None
    assert abs(row.time_error_pct) < 25


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"layers": ""}, "doesn't give layers"),
        ({"gpu": "Cerebras"}, "'Cerebras' is not known"),
        ({"gpu": "RTX-3090/Titan-RTX"}, "mix of GPU types"),
        ({"dp": "7"}, "is not the 512 GPUs of the row"),
        ({"tp": "7", "dp": ""}, "doesn't divide 512 GPUs"),
        ({"mbs": "", "gbs": ""}, "doesn't give mbs"),
        ({"pp": "128", "tp": "4", "dp": "1"}, "more than the model's layers"),
        ({"precision": "nvfp4"}, "fp4 matrix products are not modelled"),
        ({"kv_heads": "5"}, "not a multiple of num_kv_heads"),
        ({"layers": "1000000000"}, "beyond any model or cluster"),
        ({"model": "Mixtral 8x7B"}, "experts of the model are not described"),
    ],
)
def test_rows_that_can_t_be_expressed_are_refused_in_words(
    tmp_path: Path, changed: dict[str, str], reason: str
) -> None:
    row = _score(tmp_path, **changed)
    assert row.prediction is None
    assert reason in (row.refused or "")


def test_time_comes_from_tokens_where_no_seconds_are_printed(tmp_path: Path) -> None:
    row = _score(tmp_path, measured_iter_s="", measured_tokens_per_s_per_gpu="100")
    assert row.subject is not None
    assert row.subject.measured_s == pytest.approx(1536 * 2048 / (100 * 512))


def test_an_unstated_microbatch_is_the_fastest(tmp_path: Path) -> None:
    row = _score(tmp_path, mbs="")
    assert row.prediction is not None
    assert row.prediction.layout.microbatch in (1, 2, 4)
    assert row.fields.remarks == ["microbatch size not stated: the fastest counts"]


def test_out_of_memory_runs_are_judged(tmp_path: Path) -> None:
    row = _score(tmp_path, measured_iter_s="", measured_peak_mem_gib="OOM(>80)", tp="2", pp="4",
                 dp="64")  # fmt: skip
    assert row.prediction is not None
    assert row.prediction.fits is False


def test_rows_without_a_figure_are_counted_not_refused(tmp_path: Path) -> None:
    report = validate([_table(tmp_path, GPT3 | {"measured_iter_s": ""}, GPT3)])
    assert report.without_figure == 1
    assert report.refused_pct == 0
    assert [group.used for group in report.groups] == [1]


def test_a_folder_is_read_whole_and_other_tables_are_left_alone(tmp_path: Path) -> None:
    _table(tmp_path, GPT3, name="a.csv")
    _table(tmp_path, GPT3, name="b.csv")
    (tmp_path / "prices.csv").write_text("zone,usd\na,1\n")
    assert [group.name for group in validate([tmp_path]).groups] == ["a", "b"]


def test_a_file_that_is_no_truth_table_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("zone,usd\na,1\n")
    with pytest.raises(InputError, match="no column 'source'"):
        validate([path])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-SXM4-80GB, 4x100Gb RoCE", "A100-80GB"), ("a100_40gb", "A100-40GB"),
        ("GH-96", "GH200-96GB"), ("GB200 (DGX GB200)", "GB200"), ("H800-80GB", "H100-80GB"),
        ("V100-32GB (DGX-2)", "V100-32GB"), ("dgxa100_dracooci", "A100-80GB"),
    ],
)  # fmt: skip
def test_gpu_types_in_free_text(text: str, name: str) -> None:
    assert gpu_of(text).name == name


def test_a_gpu_type_beyond_the_catalogue_is_refused() -> None:
    with pytest.raises(Refused, match="not in the catalogue"):
        gpu_of("GB300")


def test_the_flop_of_narayanan_et_al(tmp_path: Path) -> None:
    # SC21, table 1, 1T: 163 TFLOP/s on 3072 GPUs is 102.63 s.
    (fields,) = read_table(
        _table(tmp_path, GPT3 | {"layers": "128", "hidden": "25600", "gbs": "3072"})
    )
    assert sc21_flop(fields, 96) / (163e12 * 3072) == pytest.approx(102.63, rel=1e-4)


def test_a_drawn_pipeline_is_read() -> None:
    assert _drawn("Et*2|(tt|)*2tL") == (
        Chunk(blocks=2, embedding=True), Chunk(blocks=2), Chunk(blocks=2),
        Chunk(blocks=1, head=True),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stem", "time", "memory"),
    [
        ("vtrain_single_a100", 7.0, None), ("vtrain_multi_a100", 7.0, None),
        ("bloom_prequel_a100", 4.0, 4.0), ("korthikanti_seqsel_a100", 4.0, None),
        ("megatron_lm_published", 4.0, None), ("mosaicml_mpt_h100_a100", 4.0, None),
        ("internevo_a100_a800", 5.0, 3.0), ("nanotron_h100", 10.0, 8.0),
        ("megatron_lm_functional_gpt_mem", None, 2.0), ("galvatron_llama2_7b_layer_mem", None, 5.0),
    ],
)  # fmt: skip
def test_whole_tables_stay_within_their_errors(
    stem: str, time: float | None, memory: float | None
) -> None:
    path = TRUTH / f"{stem}.csv"
    if not path.exists():
        pytest.skip("the whole tables are not on this machine")
    (group,) = validate([path]).groups
    assert group.above_bound == 0
    if time is not None:
        assert group.time is not None
        assert group.time.mean_abs_pct <= time
    if memory is not None:
        assert group.memory is not None
        assert group.memory.mean_abs_pct <= memory


def test_few_rows_of_all_tables_are_refused() -> None:
    if not TRUTH.exists():
        pytest.skip("the whole tables are not on this machine")
    assert validate([TRUTH]).refused_pct < 5
