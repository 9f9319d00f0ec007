"""`scripts/changed-integrations` prints what a change can break."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "packages/openhud-integrations/hud_integrations",
    "docs/integrations",
    "scripts",
    "tests/integrations",
)
IMPORTED = (
    "packages/openhud/hud/agents/budget.py",
    "packages/openhud/hud/agents/scripted.py",
    "packages/openhud/hud/agents/__init__.py",
)


def git(repository, *arguments, date="2026-01-02T12:00:00Z"):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    dates = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    subprocess.run(
        ["git", *who, *arguments], cwd=repository, check=True, capture_output=True, env=dates
    )


def listed(repository, *arguments):
    done = subprocess.run(
        ["scripts/changed-integrations", *arguments], cwd=repository, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def repository(tmp_path):
    """A repository with the files that the script reads, in a commit of an earlier day."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.pyc"))
    for file in IMPORTED:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / file)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "one", date="2026-01-01T12:00:00Z")
    git(tmp_path, "commit", "-q", "-m", "two", "--allow-empty")
    return tmp_path


ALWAYS = sorted(
    path.stem
    for path in (ROOT / "scripts/integrations").glob("*.txt")
    if path.stem in ("tinker", "trl")
)


def test_an_integration_is_tested_for_its_own_files_and_for_what_it_imports(repository):
    assert listed(repository) == ALWAYS
    (repository / "docs/integrations/gymnasium.md").write_text("changed")
    assert listed(repository) == sorted(["gymnasium", *ALWAYS])
    git(repository, "commit", "-q", "-a", "-m", "three")
    assert listed(repository) == sorted(["gymnasium", *ALWAYS]), "commits of the last hours count"
    git(repository, "commit", "-q", "-m", "four", "--allow-empty", date="2026-01-03T12:00:00Z")
    assert listed(repository) == ALWAYS
    assert listed(repository, "main~2") == sorted(["gymnasium", *ALWAYS])


def test_modules_that_a_package_imports_lazily_count(repository):
    (repository / "packages/openhud/hud/agents/budget.py").write_text("")
    assert listed(repository) == ALWAYS, "no integration imports it"
    (repository / "packages/openhud/hud/agents/scripted.py").write_text("")
    assert "gymnasium" in listed(repository), "its tests import ScriptedAgent from hud.agents"


def test_all_are_tested_without_history_and_where_the_shared_files_changed(repository):
    every = sorted(path.stem for path in (ROOT / "scripts/integrations").glob("*.txt"))
    every.remove("tests")
    assert listed(repository, "no-such-commit") == every
    (repository / "scripts/setup-integration").write_text("changed")
    assert listed(repository) == every


def test_what_a_change_concerns_runs_as_far_as_the_time_allows(repository):
    """The commands are replaced by one that prints its arguments; the script's own work is to choose."""
    for command in ("setup-integration", "run-tests", "test-on-postgresql"):
        (repository / f"scripts/{command}").write_text('#!/bin/sh\necho "$0 $*"\n')
    (repository / "Makefile").write_text("test-integration:\n\t@echo integration $(NAME)\n")
    slow = repository / "tests/fleet/test_nodes.py"
    slow.parent.mkdir(parents=True)
    slow.write_text("pytest.mark.slow\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "commands")
    git(repository, "commit", "-q", "-m", "later", "--allow-empty", date="2026-01-03T12:00:00Z")
    (repository / "docs/integrations/gymnasium.md").write_text("changed")
    slow.write_text("pytest.mark.slow  # changed\n")

    def printed(minutes):
        done = subprocess.run(
            ["scripts/test-changed", minutes], cwd=repository, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    everything = printed("60")
    for line in (
        "integration gymnasium",
        "scripts/run-tests .venv/bin/python tests/fleet -m slow",
        "scripts/test-on-postgresql scripts/run-tests .venv/bin/python tests/fleet",
    ):
        assert line in everything
    assert "left out" not in everything
    assert "left out for time: integration gymnasium" in printed("0")
