"""Rows of SWE-bench as task folders of Harbor: the repository before a change, and the tests that the change made pass.

A task holds the files of the base commit, without the history, which has the solution. Its tests take the place of the agent's
versions of their files, and all that the row names must pass.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hud.errors import UsageError

WORKDIR = "/testbed"
IMAGE = "python:3.11"
Runner = Literal["pytest", "unittest"]
_FIELDS = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNITTEST_ID = re.compile(r"(\w+) \(([\w.]+)\)")
_TOML = """schema_version = "1.4"

[task]
name = "swe-bench/{name}"

[metadata]
repository = {repository}

[agent]
timeout_sec = 3600.0

[verifier]
timeout_sec = 1800.0

[environment]
network_mode = "no-network"
workdir = "{workdir}"
"""
_TEST = """#!/bin/bash
# Not the agent's programs, but those of the system, or of its image.
export PATH=/usr/local/bin:/usr/bin:/bin
exec python3 -I -B /tests/check.py
"""
_CHECK = '''"""Lays the tests over the repository, runs those of the row, and writes 1 if each of them passed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

TESTS, REPOSITORY = Path("/tests"), Path.cwd()
row = json.loads((TESTS / "row.json").read_text())
for name in row["deleted"]:
    (REPOSITORY / name).unlink(missing_ok=True)
for source in (path for path in (TESTS / "files").rglob("*") if path.is_file()):
    target = REPOSITORY / source.relative_to(TESTS / "files")
    if target.is_symlink() or target.is_file():
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
command = [sys.executable, "-B", "-m", row["runner"], *row["options"], *row["tests"]]
ended = subprocess.run(command, capture_output=True, text=True, errors="replace")
output = ended.stdout + ended.stderr
# A program that ends the process early ends it without a count.
count = re.findall(row["count"], output)
passed = ended.returncode == 0 and count[-1:] == [str(len(row["tests"]))]
print(output[-4000:])
Path("/logs/verifier/reward.txt").write_text(f"{float(passed)}\\n")
'''
_RUNNERS: dict[str, dict[str, Any]] = {
    "pytest": {"options": ["-q", "-p", "no:cacheprovider"], "count": r"(\d+) passed"},
    "unittest": {"options": [], "count": r"Ran (\d+) tests?"},
}


def convert_swe_bench(
    rows: Iterable[Mapping[str, Any]],
    repositories: str | Path,
    output: str | Path,
    *,
    runner: Runner = "pytest",
    image: str = IMAGE,
) -> list[Path]:
    """Write a task folder for each row into the new folder `output`; returns the folders.

    `repositories` holds clones as `OWNER__NAME`. `image` is the base of the Dockerfiles: it has the dependencies and the `runner`.
    Raises `UsageError` for a row without its fields, repository or commit, and for patches that do not apply.
    """
    target = Path(output)
    if target.exists():
        raise UsageError(f"{target} exists; name a new folder.")
    with tempfile.TemporaryDirectory() as scratch:
        written = [
            _write_task(row, Path(repositories), Path(scratch) / "tasks", runner, image)
            for row in rows
        ]
        if not written:
            raise UsageError("There is no row to convert.")
        shutil.copytree(Path(scratch) / "tasks", target, symlinks=True)
    return [target / folder.name for folder in written]


def _write_task(
    row: Mapping[str, Any], repositories: Path, root: Path, runner: Runner, image: str
) -> Path:
    name = str(row.get("instance_id", ""))
    missing = [field for field in _FIELDS if not isinstance(row.get(field), str | list)]
    if missing or not _NAME.fullmatch(name):
        raise UsageError(f"Row {name!r} of SWE-bench lacks {', '.join(missing) or 'a usable id'}.")
    folder = root / name
    before, after = folder / "environment/repository", root.parent / "after"
    _export(repositories / str(row["repo"]).replace("/", "__"), str(row["base_commit"]), before)
    shutil.copytree(before, after, symlinks=True)
    _apply(str(row["patch"]), after, f"{name}: patch")  # It must apply, as the solution does.
    shutil.rmtree(after)
    shutil.copytree(before, after, symlinks=True)
    _apply(str(row["test_patch"]), after, f"{name}: test_patch")
    changed = _changed_files(str(row["test_patch"]))
    for path in changed:
        if (after / path).is_file():
            place = folder / "tests/files" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(after / path, place)
    deleted = [path for path in changed if not (after / path).is_file()]
    shutil.rmtree(after)
    tests = [_test_id(test, runner) for test in (*_names(row["FAIL_TO_PASS"]), *_names(row["PASS_TO_PASS"]))]  # fmt: skip
    if not _names(row["FAIL_TO_PASS"]):
        raise UsageError(f"Row {name!r} of SWE-bench has no test in FAIL_TO_PASS.")
    graded = {"runner": runner, "tests": list(dict.fromkeys(tests)), "deleted": deleted, **_RUNNERS[runner]}  # fmt: skip
    files = {
        "instruction.md": f"{str(row['problem_statement']).strip()}\n\nThe repository is in {WORKDIR}. Resolve this issue there.\n",
        "task.toml": _TOML.format(name=name, repository=json.dumps(row["repo"]), workdir=WORKDIR),
        "environment/Dockerfile": f"FROM {image}\nWORKDIR {WORKDIR}\nCOPY repository/ .\n",
        "tests/test.sh": _TEST,
        "tests/check.py": _CHECK,
        "tests/row.json": json.dumps(graded, indent=1) + "\n",
        "solution/solve.sh": f"cd {WORKDIR} && git apply /solution/solution.patch\n",
        "solution/solution.patch": str(row["patch"]),
    }
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def _export(repository: Path, commit: str, target: Path) -> None:
    """Write the files of a commit to a folder, without the history."""
    target.mkdir(parents=True)
    if not repository.is_dir() or not re.fullmatch(r"[0-9a-fA-F]{7,64}", commit):
        raise UsageError(f"There is no clone {repository} with a commit {commit!r}.")
    command = ["git", "-C", str(repository), "archive", "--format=tar", commit]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode != 0:
        raise UsageError(f"{repository}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)


def _apply(patch: str, folder: Path, what: str) -> None:
    # Outside of a repository git applies a patch to plain files, and refuses paths that lead out of the folder.
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    done = subprocess.run(
        command, input=patch.encode(), cwd=folder, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise UsageError(f"{what} does not apply: {done.stderr.decode(errors='replace').strip()}")


def _changed_files(patch: str) -> list[str]:
    """Return the paths of a patch's files, before and after it."""
    named = re.findall(r"^diff --git a/(.+) b/(.+)$", patch, re.MULTILINE)
    return list(dict.fromkeys(path for pair in named for path in pair))


def _names(tests: str | Sequence[str]) -> list[str]:
    """Return a row's tests, which may be a list or its JSON."""
    return list(json.loads(tests) if isinstance(tests, str) else tests)


def _test_id(test: str, runner: Runner) -> str:
    """Return a test as its runner takes it: `test_a (tests.test_x.Case)` is unittest's `tests.test_x.Case.test_a`."""
    match = _UNITTEST_ID.fullmatch(test)
    if runner != "unittest" or match is None:
        return test
    method, place = match.groups()
    return place if place.endswith(f".{method}") else f"{place}.{method}"
