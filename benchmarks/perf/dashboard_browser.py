"""What the dashboard's measurements in a browser share: `hud view` as a process, and a Chromium that looks at it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def viewed(home: Path) -> Iterator[tuple[str, int]]:
    """Serve what is recorded in `home`; yield the address that signs a browser in, and the server's process id."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    server = subprocess.Popen(
        [sys.executable, "-m", "hud.cli.main", "view", "--no-browser"],
        env={**kept, "HUD_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http\S+", server.stdout.readline())
        if found is None:
            raise RuntimeError("hud view did not say where it serves.")
        yield found[0], server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Debian's Chromium, which `scripts/setup-worlds chromium` installs."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


def cpu_seconds(process: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
