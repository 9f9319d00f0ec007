"""`scripts/changed-integrations` prints what a change can break."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src/hud/integrations", "docs/integrations", "scripts", "tests/integrations")
IMPORTED = ("src/hud/agents/budget.py", "src/hud/agents/scripted.py", "src/hud/agents/__init__.py")


def git(repository, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *arguments], cwd=repository, check=True, capture_output=True)


def listed(repository, *arguments):
    done = subprocess.run(
        ["scripts/changed-integrations", *arguments], cwd=repository, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def repository(tmp_path):
    """A repository of two commits with the files that the script reads."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.pyc"))
    for file in IMPORTED:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / file)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "one")
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
    assert listed(repository) == sorted(["gymnasium", *ALWAYS]), "main's newest commit counts"
    git(repository, "commit", "-q", "-m", "four", "--allow-empty")
    assert listed(repository) == ALWAYS
    assert listed(repository, "main~2") == sorted(["gymnasium", *ALWAYS])


def test_modules_that_a_package_imports_lazily_count(repository):
    (repository / "src/hud/agents/budget.py").write_text("")
    assert listed(repository) == ALWAYS, "no integration imports it"
    (repository / "src/hud/agents/scripted.py").write_text("")
    assert "gymnasium" in listed(repository), "its tests import ScriptedAgent from hud.agents"


def test_all_are_tested_without_history_and_where_the_shared_files_changed(repository):
    every = sorted(path.stem for path in (ROOT / "scripts/integrations").glob("*.txt"))
    every.remove("tests")
    assert listed(repository, "no-such-commit") == every
    (repository / "scripts/setup-integration").write_text("changed")
    assert listed(repository) == every
