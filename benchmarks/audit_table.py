"""The audit of every environment and benchmark in this repository: the table of docs/audit.md.

    python benchmarks/audit_table.py [NAME...]      about an hour on two cores without names

A name is a row of the table: `autonomy-10`, `reasoning-gym`, `preset blank`, `example triage`. Updates audit.json beside this file
with the rows that were audited, drops those of what is gone, and writes the table into the page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from hud.benchmarks import Benchmark, benchmarks

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("audit.json")
PAGE = ROOT / "docs" / "audit.md"
EXAMPLES = ROOT / "examples"
PRESETS = ("blank", "tools", "mcp", "subagents", "workspace", "browser")
SAMPLES: dict[str, dict[str, tuple[int, str]]] = {
    "arithmetic": {"arithmetic.py": (10, "arithmetic_agent.py:agent")},
    "depot": {"depot/tasks.py": (20, "depot/scripted.py:agent")},
    "triage": {"triage/tasks.py": (50, "triage/scripted.py:agent")},
    "triage, team": {"triage/team_tasks.py": (20, "triage/team_scripted.py:agent")},
    "hierarchy": {
        "hierarchy/tasks.py": (30, "hierarchy/scripted.py:agent"),
        "hierarchy/clerk_tasks.py": (30, "hierarchy/scripted.py:expert_clerk"),
    },
}
"""Tasks that are audited of each file of an example, and the agent that does the work."""
SCREENS = ("autonomy-10", "miniwob", "sheetbench-50", "terminal-12")
"""Graded on what was done, not on an answer: of the exploits without tools, `nothing` says what all of them do."""
SCREEN = ("--exploits", "nothing,calls,reach", "--max-concurrent", "3", "--rollout-timeout", "300")
MOST = 20
"""Held-out tasks that are audited of a benchmark, evenly spaced; of a family's each member, half as many."""


class Customer(BaseHTTPRequestHandler):
    """A server of chat completions with one model, which answers the same to everything: the customer of tau2."""

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "customer", "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        said = {"role": "assistant", "content": "Please go on."}
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        self._send(
            {"id": "1", "object": "chat.completion", "model": "customer", "choices": [choice]}
        )

    def _send(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def rows() -> dict[str, int]:
    """Return the names of the table's rows, in order, with the number of their tasks; 0: not known without loading them."""
    found = dict.fromkeys(
        [*(f"preset {name}" for name in PRESETS), *map("example {}".format, SAMPLES)], 0
    )
    for one in benchmarks():
        row = _row(one)
        found[row] = found.get(row, 0) + one.sizes["held-out"]
    return found


def audits(row: str, folder: Path) -> list[list[str]]:
    """Return the arguments of `hud audit` for each audit of a row; a preset is made in the folder."""
    kind, _, name = row.partition(" ")
    if kind == "preset":
        _hud("init", name, "--preset", name, cwd=folder)
        return [[f"{folder}/{name}/tasks.py", "--solver", f"{folder}/{name}/agent.py"]]
    if kind == "example":
        return [
            [f"{EXAMPLES}/{tasks}", "--solver", f"{EXAMPLES}/{solver}", "--tasks", str(most), "--max-concurrent", "4"]
            for tasks, (most, solver) in SAMPLES[name].items()
        ]  # fmt: skip
    members = [one for one in benchmarks() if _row(one) == row]
    return [["--benchmark", one.name, *_options(one, len(members))] for one in members]


def audited(row: str) -> dict[str, Any]:
    """Run the audits of a row, and return its record."""
    from records import circumstances

    with tempfile.TemporaryDirectory() as made:
        printed = [_hud("audit", *arguments, "--json") for arguments in audits(row, Path(made))]
    reports = [json.loads(text) for text in printed]
    tasks = [task for report in reports for task in report["tasks"]]
    solved = [task["solved"] for task in tasks if task["solved"] is not None]
    findings = Counter(one["kind"] for report in reports for one in report["findings"])
    return {
        "audited": len(tasks),
        "of": rows()[row] or len(tasks),
        "mean": round(sum(task["highest"] for task in tasks) / len(tasks), 4),
        "highest": round(max(task["highest"] for task in tasks), 4),
        "above": {task["slug"]: task["exploit"] for task in tasks if task["above"]},
        "solved": round(sum(solved) / len(solved), 4) if solved else None,
        "unmeasured": sum(len(report["unmeasured"]) for report in reports),
        "findings": dict(sorted(findings.items())),
        **circumstances(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def table(records: Mapping[str, dict[str, Any]]) -> str:
    """Return the table of docs/audit.md."""
    lines = [
        "| environment | tasks audited | highest reward without the work, mean | most | above the floor | the work | findings |",
        "|---|---:|---:|---:|---|---:|---|",
    ]
    for row in [row for row in rows() if row in records]:
        one = records[row]
        by = ", ".join(sorted(set(one["above"].values())))
        cells = [
            row,
            f"{one['audited']:,}" + (f" of {one['of']:,}" if one["of"] != one["audited"] else ""),
            f"{one['mean']:.3f}",
            f"{one['highest']:.2f}",
            f"{len(one['above'])}" + (f" ({by})" if by else ""),
            "–" if one["solved"] is None else f"{one['solved']:.3f}",
            ", ".join(f"{count} {kind}" for kind, count in one["findings"].items()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(benchmark: Benchmark) -> str:
    family, _, member = benchmark.name.partition("/")
    return family if family == "reasoning-gym" and member else benchmark.name


def _options(benchmark: Benchmark, members: int) -> Sequence[str]:
    most = MOST if members == 1 else MOST // 2
    return ["--tasks", str(most), *(SCREEN if benchmark.name in SCREENS else ())]


def _hud(*arguments: str, cwd: Path | None = None) -> str:
    command = [sys.executable, "-m", "hud.cli.main", *arguments]
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: a task is above its floor.
        sys.exit(f"Failed: hud {' '.join(arguments)}")
    return done.stdout


def main(names: Sequence[str]) -> None:
    """Audit the rows of these names, or all; record them, and write the table into the page."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))
    from page_tables import write_table

    known = rows()
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"There is no row {unknown[0]!r}; there are {', '.join(known)}.")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Customer)
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        os.environ.pop("HUD_API_URL", None)
        os.environ |= {
            "HUD_HOME": home,
            "HUD_USER_MODEL": f"http://127.0.0.1:{server.server_port}/v1",
        }
        for row in names or known:
            records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
            records[row] = audited(row)
            records = {name: records[name] for name in known if name in records}
            RECORD.write_text(json.dumps(records, indent=1) + "\n")
            write_table(PAGE, table(records))
            print(table({row: records[row]}).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
