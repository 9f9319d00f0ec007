"""Distributions of other people, in a folder outside of the repository."""

from __future__ import annotations

import sys
from collections.abc import Callable


def installer(folder, monkeypatch) -> Callable[..., None]:
    """Return a function that installs a distribution, `strange-plug`: one module, one entry point."""

    def install(group, name, code, value="strange_plug:plug"):
        (folder / "strange_plug.py").write_text(code)
        described = folder / "strange_plug-1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: strange-plug\nVersion: 1.0\n"
        )
        (described / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "strange_plug", raising=False)

    return install
