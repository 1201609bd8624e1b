"""The profile store: its file gives back what went in, and is refused when it is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sailor.errors import InputError
from sailor.model.hardware import BandwidthCurve, Link
from sailor.model.presets import preset
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitBytes, UnitTime
from sailor.profiling.store import ProfileStore

SECONDS = st.floats(min_value=1e-9, max_value=1e3, allow_nan=False)


def _profile(tp: int = 1, block_s: float = 0.1, embedding_s: float = 0.1 + 0.2) -> LayerProfile:
    return LayerProfile(
        model="opt-350m",
        gpu="A100-40GB",
        tp=tp,
        microbatch=2,
        precision="fp32",
        embedding=UnitTime(forward_s=embedding_s, backward_s=0),
        first_block=UnitTime(forward_s=0.5, backward_s=0.25),
        block=UnitTime(forward_s=block_s, backward_s=1 / 3),
        head=UnitTime(forward_s=1e-7, backward_s=2.0),
        optimizer_s=0.01,
        optimizer_params=123,
        provenance=Provenance.MEASURED,
        source="a bench, with 'quotes' and µs",
        as_of=date(2026, 1, 31),
    )


def _footprint() -> LayerFootprint:
    def unit(params: int) -> UnitBytes:
        return UnitBytes(params=params, activation_bytes=4.5 * params, output_bytes=2**40 + 1)

    return LayerFootprint(
        model="opt-350m",
        tp=1,
        precision="fp32",
        embedding=unit(1),
        first_block=unit(2),
        block=unit(3),
        head=unit(4),
        provenance=Provenance.COUNTED,
        source="a bench",
    )


def _links() -> tuple[Link, ...]:
    curve = BandwidthCurve(coefficients=(-0.1, 0.3, 1 / 3), peak_bytes_per_s=2e9, max_bytes=1e8)
    return (
        Link(src="a", dst="b", src_gpu="A100-40GB", dst_gpu="A100-40GB", src_workers=1,
             dst_workers=2, latency_s=1e-4, curve=curve, source="a bench"),
        Link(src="b", dst="a", latency_s=1e-4, bandwidth=1e9 / 3, source="guess", assumed=True),
        Link(src="b", dst="b", latency_s=0, curve=curve, source="a bench"),
    )  # fmt: skip


def _store(**fields: Any) -> ProfileStore:
    return ProfileStore(
        **{
            "source": "a bench",
            "licence": "MIT",
            "models": (preset("opt-350m"),),
            "profiles": (_profile(1), _profile(2)),
            "footprints": (_footprint(),),
            "links": _links(),
            "remarks": ("one", "two"),
            **fields,
        }
    )


def test_round_trip(tmp_path: Path) -> None:
    store = _store(as_of=date(2026, 2, 1))
    store.save(tmp_path / "store.json")
    loaded = ProfileStore.load(tmp_path / "store.json")
    assert loaded == store
    assert loaded.digest() == store.digest()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store.json"]


def test_empty_store_round_trips() -> None:
    empty = ProfileStore(source="a bench", licence="MIT")
    assert ProfileStore.from_text(empty.to_text(), where="x") == empty


@given(SECONDS, SECONDS)
def test_numbers_come_back_bit_for_bit(block_s: float, embedding_s: float) -> None:
    store = _store(profiles=(_profile(1, block_s, embedding_s),))
    loaded = ProfileStore.from_text(store.to_text(), where="x").profiles[0]
    assert loaded.block.forward_s == block_s
    assert loaded.embedding.forward_s == embedding_s


def test_shared_texts_and_curves_are_written_once() -> None:
    text = _store().to_text()
    assert text.count("with 'quotes' and µs") == 1
    assert len(json.loads(text)["curves"]) == 1


def test_lookups() -> None:
    store = _store()
    assert store.profile("opt-350m", "A100-40GB", 2, 2, "fp32") == _profile(2)
    assert store.profile("opt-350m", "A100-40GB", 2, 2, "bf16") is None
    assert store.profile("opt-350m", "A100-40GB", 4, 2, "fp32") is None
    assert store.grid("opt-350m", "A100-40GB", "fp32") == ((1, 2), (2, 2))
    assert store.grid("opt-350m", "V100-16GB", "fp32") == ()
    assert store.footprint("opt-350m", 1, "fp32") == _footprint()
    assert store.footprint("opt-350m", 2, "fp32") is None
    assert store.link("a", "b", "A100-40GB", "A100-40GB", 1, 2) == _links()[0]
    assert store.link("a", "b", "A100-40GB", "A100-40GB", 2, 1) is None
    assert store.link("b", "a", None, None, None, None) == _links()[1]


def test_a_model_is_known_by_its_shape_not_its_name() -> None:
    store, model = _store(), preset("opt-350m")
    assert store.describes(model)
    assert store.describes(model.model_copy(update={"source": "elsewhere"}))
    for field, value in (("hidden", 2048), ("seq_len", 1024), ("vocab", 1), ("num_layers", 12)):
        assert not store.describes(model.model_copy(update={field: value}))
    assert not store.describes(preset("opt-30b"))


def test_duplicates_are_refused() -> None:
    with pytest.raises(ValidationError, match="a profile is given twice"):
        _store(profiles=(_profile(1), _profile(1, 0.7)))
    with pytest.raises(ValidationError, match="a link is given twice"):
        _store(links=(_links()[1], _links()[1]))


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(key)


def _cell(table: str, row: int, column: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place = document[table]["columns"].index(column)
        document[table]["rows"][row][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("sources"), "lacks sources"),
        (lambda d: d.update(notes=1), "has unknown notes"),
        (lambda d: d.update(format="other"), "is not a profile store"),
        (lambda d: d.update(schema_version=2), "of version 2; this sailor reads version 1"),
        (lambda d: d.update(source=""), "source: .*at least 1"),
        (lambda d: d.update(curves=[[1, 2]]), "sources or curves: "),
        (lambda d: d["profiles"].update(columns=["model"]), "profiles: the columns are not"),
        (lambda d: d["profiles"].update(rows=3), "profiles: there are no rows"),
        (lambda d: d["links"]["rows"][1].pop(), r"links\[1\] doesn't have 11 cells"),
        (_cell("profiles", 1, "tp", "two"), r"profiles\[1\]: tp: .*integer"),
        (_cell("profiles", 0, "block_forward_s", 0), r"profiles\[0\]: .*missing measurement"),
        (_cell("profiles", 0, "block_forward_s", -1), r"profiles\[0\]: forward_s: "),
        (_cell("profiles", 0, "source", 99), r"profiles\[0\]: "),
        (_cell("footprints", 0, "block_params", -3), r"footprints\[0\]: params: "),
        (_cell("links", 0, "curve", None), r"links\[0\]: .*either bandwidth or curve"),
        (_cell("profiles", 1, "tp", 1), "a profile is given twice"),
        (_cell("links", 0, "latency_s", None), r"links\[0\]: latency_s: "),
    ],
)
def test_damaged_files_get_one_sentence(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    document = json.loads(_store().to_text())
    change(document)
    file = tmp_path / "store.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message) as caught:
        ProfileStore.load(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_truncated_files_are_refused(tmp_path: Path, part: float) -> None:
    text = _store().to_text()
    file = tmp_path / "store.json"
    file.write_text(text[: int(len(text) * part) - 3])
    with pytest.raises(InputError, match="is not JSON"):
        ProfileStore.load(file)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't read the profile store.*sailor profile import"):
        ProfileStore.load(tmp_path / "none.json")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is no text"):
        ProfileStore.load(binary)
    huge = tmp_path / "huge"
    with huge.open("wb") as stream:
        stream.truncate(200_000_000)
    with pytest.raises(InputError, match="is 200000000 bytes long"):
        ProfileStore.load(huge)
    with pytest.raises(InputError, match="can't write the profile store"):
        _store().save(tmp_path / "no" / "store.json")
