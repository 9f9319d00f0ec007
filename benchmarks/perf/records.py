"""Records of measured figures: each `report` prints a line and appends one JSON record to records.jsonl.

`BENCH_RECORDS` names another file; empty: nothing is written. `results.py` makes the table and the plot of the records.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from sizes import SMALLEST

FOLDER = Path(__file__).parent
FILE = FOLDER / "records.jsonl"


def report(
    name: str,
    value: float,
    unit: str,
    *,
    bar: float | None = None,
    at_most: bool = False,
    peer: str | None = None,
    peer_value: float | None = None,
    ratio: float | None = None,
) -> bool:
    """Print and record one figure of the running benchmark; return whether its bar is held (True without one).

    bar: least value, in `unit`; with `at_most`, the largest. peer, peer_value: the other side or the limit that was
    measured in the same run, in `unit`. ratio: of both; default: value / peer_value.
    """
    if ratio is None and peer_value:
        ratio = value / peer_value
    held = SMALLEST or bar is None or (value <= bar if at_most else value >= bar)
    record = {
        "benchmark": benchmark(),
        "name": name,
        "value": _rounded(value),
        "unit": unit,
        "bar": bar,
        "at_most": at_most,
        "held": held,
        "peer": peer,
        "peer_value": _rounded(peer_value),
        "ratio": _rounded(ratio),
        **circumstances(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    print(line(record), flush=True)
    target = os.environ.get("BENCH_RECORDS", str(FILE))
    if target and not SMALLEST:
        with Path(target).open("a") as records:
            records.write(json.dumps(record) + "\n")
    return held


def line(record: dict[str, object]) -> str:
    """Return a record as one line of text."""
    text = f"{record['name']}: {figure(record['value'])} {record['unit']}"
    if record["peer"] is not None:
        other = "" if record["peer_value"] is None else f" {figure(record['peer_value'])}"
        text += f", {record['peer']}{other}"
    if record["ratio"] is not None:
        text += f", ratio {figure(record['ratio'])}"
    if record["bar"] is not None:
        sign = "at most" if record["at_most"] else "at least"
        text += f" ({sign} {figure(record['bar'])}: {'held' if record['held'] else 'missed'})"
    return text


def figure(value: object) -> str:
    """Return a number with three significant digits, or whole from 100 on."""
    if not isinstance(value, float | int):
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def benchmark() -> str:
    """Return the folder and the name of the script that runs, such as `perf/sampler`."""
    script = Path(sys.argv[0]).resolve()
    return f"{script.parent.name}/{script.stem}"


@cache
def circumstances() -> dict[str, object]:
    """Return what every record of this process shares: commit and machine."""
    commit = commit_of(FOLDER)
    changed = _output("git", "-C", str(FOLDER), "status", "--porcelain", "--", "../../packages")
    return {"commit": f"{commit}{'+' if changed else ''}", "machine": _machine()}


def commit_of(folder: Path) -> str:
    """Return the commit of the checkout that a folder is in."""
    return _output("git", "-C", str(folder), "rev-parse", "--short=9", "HEAD")


def _machine() -> str:
    parts = [
        _processor(),
        f"{len(os.sched_getaffinity(0))} cores",
        f"Python {sys.version.split()[0]}",
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        parts.append(f"torch {torch.__version__}")
        if torch.cuda.is_available():
            parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for row in info.read_text().splitlines():
            if row.startswith("model name"):
                return row.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _rounded(value: float | None) -> float | None:
    """Return a value with six significant digits."""
    return None if value is None else float(f"{value:.6g}")
