"""Loading YAML and JSON with places, and writing whole files."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from sailor.errors import InputError
from sailor.model.base import Record
from sailor.model.document import Document, relocated
from sailor.model.files import (
    MAX_FILE_BYTES,
    document_from_text,
    load_document,
    load_record,
    parse_record,
    write_atomic,
)


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Inner(Record):
    size: int = Field(ge=1)
    name: str = Field(default="x", pattern=r"^\S+$")


class Other(Record):
    path: str
    depth: int = 1


class Outer(Record):
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    either: Inner | Other | str = "x"
    on: bool = True
    share: float = Field(default=0.5, gt=0, lt=1)
    day: date | None = None
    count: int = 1


def read(text: str) -> dict[str, object]:
    return dict(document_from_text(text, "f").data)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        document_from_text(text, "f")
    return one_sentence(caught.value)


def fault(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_record(Outer, document_from_text(text, "f"))
    return one_sentence(caught.value)


def one_sentence(error: InputError) -> str:
    sentence = str(error)
    assert sentence.isprintable(), sentence
    for jargon in ("pydantic", "Input should", "type=", "tuple", "_type", "valid dictionary"):
        assert jargon not in sentence
    return sentence


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("1e9", 1e9),
        ("1E-3", 1e-3),
        (".5", 0.5),
        ("5.", 5.0),
        ("+12", 12),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-11-01", "2026-11-01"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("100 Gbit/s", "100 Gbit/s"),
        ("[1, two, 3.5]", [1, "two", 3.5]),
        ("{a: 1}", {"a": 1}),
        ("|\n  a\n  b", "a\nb\n"),
        ("'caf\u00e9 \U0001f680'", "caf\u00e9 \U0001f680"),
    ],
)
def test_yaml_values_follow_the_core_schema_of_1_2(text: str, value: object) -> None:
    assert read(f"key: {text}\n") == {"key": value}


def test_yaml_infinities_and_nan_are_numbers_that_records_refuse() -> None:
    assert read("a: .inf\nb: -.INF")["a"] == float("inf")
    for text in (".nan", ".inf", "-.inf", "1e999"):
        assert fault(f"share: {text}").startswith("f:1: share should be a finite number, not ")


def test_a_flow_mapping_is_yaml_and_an_object_is_json() -> None:
    assert read("{a: 1, b: [x]}") == {"a": 1, "b": ["x"]}
    assert read('{"a": 1e3, "b": ["\\u00e9"]}') == {"a": 1000.0, "b": ["\u00e9"]}
    assert read("{}") == {}
    assert read("\ufeff# with a mark\na: 1".lstrip("\ufeff")) == {"a": 1}


def test_keys_know_their_lines_in_yaml_and_json() -> None:
    yaml = "# comment\nname: a\n\ninner:\n  size: 1\nmany:\n- size: 1\n- {size: 2,\n   name: b}\n"
    data = {"name": "a", "inner": {"size": 1}, "many": [{"size": 1}, {"size": 2, "name": "b"}]}
    document = document_from_text(yaml, "f")
    assert document.data == data
    places = {path: document.place(path) for path in PATHS}
    assert places == {path: f"f:{line}" for path, line in PATHS.items()}
    text = json.dumps(data, indent=1)
    as_json = document_from_text(text, "f")
    rows = text.split("\n")
    for path in (("name",), ("inner",), ("inner", "size"), ("many", 1, "name")):
        line = int(as_json.place(path).removeprefix("f:"))
        assert f'"{path[-1]}"' in rows[line - 1]
    assert as_json.place(("many", 1)) == f"f:{rows.index('  {', rows.index('  {') + 1) + 1}"


PATHS = {
    ("name",): 2,
    ("inner",): 4,
    ("inner", "size"): 5,
    ("many",): 6,
    ("many", 0): 7,
    ("many", 0, "size"): 7,
    ("many", 1): 8,
    ("many", 1, "size"): 8,
    ("many", 1, "name"): 9,
    ("many", 1, "unheard_of"): 8,
}


def test_json_lines_are_found_among_odd_strings() -> None:
    text = '{"a": "br{ace [\\" , :",\n "b": [\n  [], {},\n  {"c": 1}],\n "d\\u0065": 2}'
    document = document_from_text(text, "f")
    assert document.place(("b", 2, "c")) == "f:4"
    assert document.place(("de",)) == "f:5"
    later = document_from_text(text, "f", first_line=100)
    assert later.place(("de",)) == "f:104"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "f: the file is empty; see `sailor schema job`"),
        (" \n\t", "f: the file is empty; see `sailor schema job`"),
        ("a: 1\na: 2", "f:2: the key 'a' is there twice (first on line 1); keep one of them"),
        ('{"a": 1,\n\n "a": 2}', "f:3: the key 'a' is there twice; keep one of them"),
        (
            '{"x": {"a": 1}, "y": {"a": 1,\n "b": [{"a": 2, "a": 3}]}}',
            "f:2: the key 'a' is there twice; keep one of them",
        ),
        ("a: &x 1\nb: *x", "f:1: the anchor &x is not allowed; write the value out"),
        ("b: *x", "f:1: the alias *x is not allowed; write the value out"),
        (
            "a: !!python/object:os.system x",
            "f:1: the tag 'tag:yaml.org,2002:python/object:os.system' is not allowed; "
            "write a plain value",
        ),
        ("a: !x [1]", "f:1: the tag '!x' is not allowed; write a plain value"),
        ("a: 1\n---\nb: 2", "f:2: a second YAML document starts here; write one document a file"),
        (
            "%YAML 1.1\n---\na: no",
            "f:2: YAML directives are not allowed; leave out the lines that start with %",
        ),
        ("? [a]\n: b", "f:1: a key must be plain text; write it as `key: value`"),
        (": b", "f:1: '' is no key; write keys as `key: value`"),
        (
            "a: " + "[" * 65,
            "f:1: nested more than 64 levels deep; a job needs fewer than 10",
        ),
        ('{"a": ' + "[" * 100_000, "f:1: nested too deeply; a job needs fewer than 10"),
        ('{"a": ' + '{"a": ' * 100_000, "f:1: nested too deeply; a job needs fewer than 10"),
        (
            '{"a": 1, "b"',
            "f:1: this is not valid JSON: expecting ':' delimiter; the file seems cut off",
        ),
        (
            '{"a": 1,\n "b": x}',
            "f:2: this is not valid JSON: expecting value; "
            "check the commas, quotes and brackets there",
        ),
        (
            '{"a": 1}\n{"a": 2}',
            "f:2: this is not valid JSON: extra data; "
            "write one object a file, or one a line in a .jsonl file",
        ),
        (
            "a: [1, 2\n",
            "f:2: this is not valid YAML: expected ',' or ']', but got '<stream end>'; "
            "the file seems cut off",
        ),
        (
            "a: 'x\n",
            "f:2: this is not valid YAML: found unexpected end of stream; the file seems cut off",
        ),
        (
            "a: 1\n\tb: 2",
            "f:2: this is not valid YAML: found character '\\t' that cannot start any token; "
            "check the indentation and quotes there",
        ),
        ("a: b: c", "f:1: this is not valid YAML: mapping values are not allowed here; "
         "check the indentation and quotes there"),
        (
            "a: x\x00y",
            "f:1: character U+0000 is not text; give a YAML or JSON file in UTF-8",
        ),
        ('a: "\\e[2J"', "f:1: '\\x1b[2J' holds a control character; leave it out"),
        (
            '{"a": {"b": "\\u001b[2J"}}',
            "f:1: a.b is '\\x1b[2J', which holds a control character; leave it out",
        ),
        ('{"\\ud800": 1}', "f:1: the key '\\ud800' holds a control character; leave it out"),
        (
            "a: 99999999999999999999",
            "f:1: the number '99999999999999999999' is too large; at most 9223372036854775807",
        ),
        (
            '{"a": [99999999999999999999]}',
            "f:1: a[0] is a number of more than 18 digits; at most 9223372036854775807",
        ),
        ('{"a": ' + "9" * 5000 + "}",
         "f:1: a number has thousands of digits; numbers are at most 9223372036854775807"),
        ("a: " + "9" * 5000,
         "f:1: a number of 5000 characters; write it with fewer digits"),
        (
            "- a\n- b",
            "f:1: the top level should be a mapping, not a list; "
            "write `key: value` lines, or several jobs one a line in a .jsonl file",
        ),
        (
            '["a"',
            "f:1: the top level should be a mapping, not a list; "
            "write `key: value` lines, or several jobs one a line in a .jsonl file",
        ),
        (
            "hello",
            "f:1: the top level should be a mapping, not 'hello'; "
            "write `key: value` lines, or several jobs one a line in a .jsonl file",
        ),
    ],
)  # fmt: skip
def test_texts_that_are_refused(text: str, sentence: str) -> None:
    assert refusal(text) == sentence


def test_aliases_that_expand_without_bound_cost_nothing() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(20)
    )
    assert refusal(bomb) == "f:1: the anchor &a is not allowed; write the value out"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cuont: 2", "f:1: unknown key 'cuont'; did you mean 'count'?"),
        (
            "inner: {sise: 2}",
            "f:1: unknown key 'sise' in inner; did you mean 'size'?",
        ),
        (
            "many:\n- size: 1\n- name: b",
            "f:3: many[1] has no size; add `size:` with a whole number",
        ),
        ("inner: 5", "f:1: inner should be a mapping with size, not 5"),
        ("inner: []", "f:1: inner should be a mapping with size, not an empty list"),
        ("many: {size: 1}", "f:1: many should be a list, not a mapping"),
        ("many: x", "f:1: many should be a list, not 'x'"),
        ("count: two", "f:1: count should be a whole number, not 'two'"),
        ("count: 1.5", "f:1: count should be a whole number, not 1.5"),
        ("count: true", "f:1: count should be a number, not true"),
        ("count:", "f:1: count should be a whole number, not nothing"),
        ("share: 0", "f:1: share should be greater than 0.0, not 0"),
        ("share: 1", "f:1: share should be less than 1.0, not 1"),
        ("share: abc", "f:1: share should be a number, not 'abc'"),
        ("on: maybe", "f:1: on should be true or false, not 'maybe'"),
        ("day: tomorrow", "f:1: day should be a date such as '2026-11-01', not 'tomorrow'"),
        ("day: 86400", "f:1: day should be a date such as '2026-11-01', not 86400"),
        ("kind: c", "f:1: kind should be 'a' or 'b', not 'c'"),
        (
            "colour: gren",
            "f:1: colour should be 'red' or 'green', not 'gren'; did you mean 'green'?",
        ),
        (
            "inner: {size: 1, name: a b}",
            "f:1: inner.name should be a name without spaces, not 'a b'",
        ),
        ("inner: {size: 1, name: 3}", "f:1: inner.name should be text, not 3"),
        (
            "either: 3",
            "f:1: either should be text or a mapping with size or a mapping with path, not 3",
        ),
        ("either: {sise: 1, path: x}", "f:1: unknown key 'sise' in either; known: path, depth"),
        ("either: {path: 1}", "f:1: either.path should be text, not 1"),
        ("either: {size: 0}", "f:1: either.size should be at least 1, not 0"),
        ("either: {}", "f:1: either should be text or a mapping with size or a mapping with path, "
         "not a mapping"),
    ],
)  # fmt: skip
def test_what_records_refuse(text: str, sentence: str) -> None:
    assert fault(text) == sentence


def test_plain_mappings_are_placed_by_field_alone() -> None:
    with pytest.raises(InputError, match=r"^job: many\[0\]\.size should be at least 1, not -1$"):
        parse_record(Outer, {"many": [{"size": -1}]}, where="job")
    with pytest.raises(InputError, match=r"^count should be a whole number, not a list$"):
        parse_record(Outer, {"count": [1]})
    with pytest.raises(InputError, match="is not text"):
        parse_record(Outer, {3: 1})  # type: ignore[dict-item]
    assert parse_record(Outer, {"colour": Colour.GREEN, "day": date(2026, 1, 2)}).count == 1


def test_errors_of_later_steps_are_placed_in_the_file() -> None:
    document = document_from_text("a: 1\npool:\n- zone: x\n- zone: y\n", "f")
    keys = ("pool", "sources", "a")
    found = relocated(InputError("unknown zone 'y'", where="pool[1].zone"), document, keys)
    assert str(found) == "f:4: pool[1].zone: unknown zone 'y'"
    default = relocated(InputError("no", where="sources.prices"), document, keys)
    assert str(default) == "f: sources.prices: no"
    other = relocated(InputError("no", where="--planner"), document, keys)
    assert str(other) == "--planner: no"


def test_files_that_are_refused(tmp_path: Path) -> None:
    def told(path: Path | str) -> str:
        with pytest.raises(InputError) as caught:
            load_document(path)
        return one_sentence(caught.value).removeprefix(f"{tmp_path}/")

    (tmp_path / "job.yaml").write_text("count: 1")
    assert told(tmp_path / "jop.yaml") == "jop.yaml: no such file; did you mean 'job.yaml'?"
    assert told(tmp_path / "no" / "x.yaml").startswith("no/x.yaml: no such file; check")
    assert told(tmp_path).endswith("is a folder; name a file in it")
    assert "can't be read" in told("a\0b")
    assert "can't be read" in told(tmp_path / ("x" * 5000))
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nname: caf\xe9\n")
    assert told(tmp_path / "latin.yaml").startswith("latin.yaml:2: byte 0xe9 is not UTF-8 text; ")
    (tmp_path / "wide.yaml").write_text("a: 1", encoding="utf-16")
    assert told(tmp_path / "wide.yaml").startswith("wide.yaml:1: byte 0xff is not UTF-8 text; ")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(200 * 2**20)  # a hole: 200 MiB that lie nowhere
    assert told(huge) == (
        "huge.json: 200 MiB is too large for one job or plan (at most 32 MiB); "
        "is it the right file?"
    )
    (tmp_path / "long.yaml").write_text("# comment\n" * 450_000 + "a: 1\n")
    assert told(tmp_path / "long.yaml").startswith("long.yaml: a YAML file of more than 4 MiB; ")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_an_endless_device_is_not_read_to_its_end() -> None:
    with pytest.raises(InputError, match="this is too large"):
        load_document("/dev/zero")


def test_standard_input_and_pipes_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"count: 7")))
    document = load_document("-")
    assert (document.name, document.data) == ("<stdin>", {"count": 7})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("count: 8"))
    writer.start()
    assert load_record(Outer, pipe).count == 8
    writer.join()


def test_a_file_of_a_hundred_thousand_entries_is_placed_in_time(tmp_path: Path) -> None:
    many = [{"size": 1 + n % 7, "name": f"n{n}"} for n in range(100_000)]
    path = tmp_path / "big.json"
    path.write_text(json.dumps({"many": many}, indent=0))
    assert path.stat().st_size < MAX_FILE_BYTES
    assert len(load_record(Outer, path).many) == 100_000
    many[99_999]["size"] = 0
    path.write_text(json.dumps({"many": many}, indent=0))
    line = path.read_text().count("\n", 0, path.read_text().index('"size": 0')) + 1
    with pytest.raises(InputError) as caught:
        load_record(Outer, path)
    expected = f"{path}:{line}: many[99999].size should be at least 1, not 0"
    assert str(caught.value) == expected


def test_paths_in_a_document_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("count: 1")
    assert load_document(tmp_path / "job.yaml").folder == tmp_path.resolve()
    assert Document("x", {}).folder == Path.cwd()


def test_writes_are_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_atomic(path, "old\u00e9")
    assert path.read_text(encoding="utf-8") == "old\u00e9"
    with pytest.raises(InputError, match="can't be written"):
        write_atomic(path, "new \ud800")  # not encodable: nothing may change
    assert path.read_text(encoding="utf-8") == "old\u00e9"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]
    mask = os.umask(0o027)
    try:
        write_atomic(tmp_path / "masked", "x")
    finally:
        os.umask(mask)
    assert (tmp_path / "masked").stat().st_mode & 0o777 == 0o640


def test_a_link_is_written_through_and_a_pipe_directly(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    (tmp_path / "link").symlink_to(target)
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_atomic(pipe, "through")
    reader.join()
    assert got == ["through"]
    assert pipe.is_fifo()


def test_places_that_can_t_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder of this file does not exist; create it first"):
        write_atomic(tmp_path / "no" / "out", "x")
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        write_atomic(tmp_path, "x")
