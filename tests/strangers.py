"""Distributions of other people, in a folder outside of the repository."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def write_distribution(folder: Path, code: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Write a distribution, `strange-plug`: one module, and entry points by group and name."""
    (folder / "strange_plug.py").write_text(code)
    described = folder / "strange_plug-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-plug\nVersion: 1.0\n")
    lines = [
        line
        for group, values in points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in values.items()))
    ]
    (described / "entry_points.txt").write_text("\n".join(lines) + "\n")


def installer(folder, monkeypatch) -> Callable[..., None]:
    """Return a function that installs a distribution with one entry point."""

    def install(group, name, code, value="strange_plug:plug"):
        write_distribution(folder, code, {group: {name: value}})
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "strange_plug", raising=False)

    return install
