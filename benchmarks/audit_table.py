"""The audit of everything in this repository, as the table of docs/audit.md: `python benchmarks/audit_table.py [NAME...]`.

Without names: presets of `hud init`, examples and benchmarks, about an hour on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PRESETS = ("blank", "tools", "mcp", "subagents", "workspace", "browser")
SCREEN = ("--exploits", "nothing,calls", "--max-concurrent", "3", "--rollout-timeout", "300")
"""A page is graded on what was done to it: of the exploits without tools, one says what all do."""


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the arguments of `hud audit` by name."""
    found = {
        f"preset {name}": [f"{folder}/{name}/tasks.py", "--solver", f"{folder}/{name}/agent.py"]
        for name in PRESETS
    }
    for name, tasks, solver, most in (
        ("arithmetic", "arithmetic.py", "arithmetic_agent.py:agent", 10),
        ("triage", "triage/tasks.py", "triage/scripted.py:agent", 100),
        ("hierarchy", "hierarchy/tasks.py", "hierarchy/scripted.py:agent", 30),
        ("hierarchy, clerk", "hierarchy/clerk_tasks.py", "hierarchy/scripted.py:expert_clerk", 30),
        ("incident lab, flat", "incident_lab/flat.py", "incident_lab/players.py:oracle", 24),
        ("incident lab, team", "incident_lab/hierarchical.py", "incident_lab/players.py:team", 24),
    ):
        found[f"example {name}"] = [
            *(f"{EXAMPLES}/{tasks}", "--solver", f"{EXAMPLES}/{solver}"),
            *("--tasks", str(most), "--max-concurrent", "4"),
        ]
    found["bfcl-multi-turn"] = ["--benchmark", "bfcl-multi-turn"]
    found["sheetbench-50"] = ["--benchmark", "sheetbench-50", "--max-concurrent", "4"]
    found["autonomy-10"] = ["--benchmark", "autonomy-10", *SCREEN]
    found["miniwob"] = ["--benchmark", "miniwob", "--tasks", "125", *SCREEN]
    return found


def audited(arguments: list[str]) -> dict[str, object]:
    """Run one audit, and return its report."""
    command = [sys.executable, "-m", "hud.cli.main", "audit", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report: dict[str, object] = json.loads(done.stdout)
    return report


def main(names: list[str]) -> None:
    """Print a row for each name, or for all."""
    print("| tasks | audited | highest reward, mean | most | above the floor | by |")
    print("|---|---:|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as made:
        for name, arguments in commands(Path(made)).items():
            if names and name not in names:
                continue
            if name.startswith("preset "):
                kind = name.removeprefix("preset ")
                init = [sys.executable, "-m", "hud.cli.main", "init", kind, "--preset", kind]
                subprocess.run(init, cwd=made, check=True, capture_output=True)
            found = audited(arguments)
            rows = found["tasks"]
            assert isinstance(rows, list)
            by = sorted({row["exploit"] for row in rows if row["above"]})
            above = sum(row["above"] for row in rows)
            figures = f"{found['mean']:.3f} | {found['highest']:.2f} | {above} | {', '.join(by)}"
            print(f"| {name} | {len(rows)} | {figures} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
