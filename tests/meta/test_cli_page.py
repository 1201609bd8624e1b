"""docs/cli.md is what the commands say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/cli_page.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert page == done.stdout, "run `python docs/cli_page.py > docs/cli.md`"
    assert "## `sailor plan JOB`" in page
    assert "## `sailor gcp refresh`" in page
