"""Requirements of the tests that recalculate workbooks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.benchmarks.played import installed

__all__ = ["fifty", "with_office"]

with_office = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("soffice", "bwrap"))
    or not Path("/usr/lib/python3/dist-packages/uno.py").exists(),
    reason="needs LibreOffice with its Python bindings, and bubblewrap (scripts/setup-worlds)",
)


def fifty():
    """The benchmark; skips where openpyxl is missing."""
    return installed("sheetbench-50")
