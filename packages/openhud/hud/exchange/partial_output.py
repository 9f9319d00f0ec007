"""Outputs that appear whole: written beside their path, and renamed at the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def partial_output(output: Path) -> Iterator[Path]:
    """Yield a path for a file or folder that becomes `output` at the end; it is removed after an error."""
    partial = output.with_name(f"{output.name}.partial")
    _remove(partial)
    try:
        yield partial
        partial.replace(output)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
