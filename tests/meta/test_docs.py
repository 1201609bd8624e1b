"""The documentation agrees with the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from sailor import hookspecs

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/*/README.md")])
HOOKS = [name for name in vars(hookspecs) if name.startswith("sailor_")]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_heading_with_its_arguments(name: str) -> None:
    arguments = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
    headings = (ROOT / "docs/hooks.md").read_text(encoding="utf-8").splitlines()
    assert f"## `{name}({arguments})`" in headings


def test_the_page_has_no_heading_for_a_hook_that_is_gone() -> None:
    text = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
    assert re.findall(r"^## `(\w+)\(", text, re.MULTILINE) == HOOKS


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_test(name: str) -> None:
    text = (ROOT / "tests/test_registry.py").read_text(encoding="utf-8")
    assert f"def test_hook_{name}(" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_layer_table_is_the_contract() -> None:
    """Every layer of the import contract has a row in the architecture page, in order."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^layers = \[(.*?)^\]", contract, re.MULTILINE | re.DOTALL)
    assert block is not None
    internal = {"plugin_check", "__main__"}
    wanted = [layer for layer in re.findall(r"\w+", block[1]) if layer not in internal]
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `sailor.")]
    assert re.findall(r"`sailor\.(\w+)`", " ".join(rows)) == wanted
