"""Rules for the files of the repository that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    ROOT / "sailor",
    ROOT / "plugins/gcp_pricing/sailor_gcp_pricing",
    ROOT / "plugins/megatron_backend/sailor_megatron",
)
MAX_LINES = 400
# Of whom a path is: everything below a home, a work folder or the root's own.
MACHINE_PATH = re.compile(r"(?<![\w.<{$}~-])/(?:" + "|".join(("work", "root", "home")) + r")/\w")
HOSTS = re.compile("|".join(("pypi" + r"\.org", "python" + "hosted", "npm" + "js")))


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted(package.rglob("*.py"))


def tracked() -> list[Path]:
    """Return the files that git has or would add; the test is skipped outside a checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    names = [name for name in listed.stdout.decode().split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def test_there_is_something_to_check() -> None:
    assert {path.name for path in modules()} >= {"api.py", "registry.py", "backend.py"}


def test_no_module_is_longer_than_400_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in modules()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


def test_every_module_has_a_concept_for_a_name() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
    assert [path for path in modules() if path.stem in vague or path.parent.name in vague] == []


def test_only_the_command_line_prints() -> None:
    printing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        if "cli" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id == "print"
    ]
    assert printing == []


def test_every_package_is_typed() -> None:
    assert [package.name for package in PACKAGES if not (package / "py.typed").is_file()] == []


def test_no_file_speaks_of_one_machine() -> None:
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for pattern in (MACHINE_PATH, HOSTS):
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_no_tracked_file_is_larger_than_2_mib() -> None:
    large = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked()}
    assert {name: size for name, size in large.items() if size > 2 * 2**20} == {}


def test_the_machine_path_pattern_finds_what_it_should() -> None:
    home = "/" + "home/"
    assert MACHINE_PATH.search(f"see {home}someone/file")
    assert MACHINE_PATH.search(f'"{home}x"')
    assert not MACHINE_PATH.search("repo/" + "work/out")
    assert not MACHINE_PATH.search("$HOME" + home + "x")
