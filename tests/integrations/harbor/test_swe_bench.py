"""Rows of SWE-bench become tasks of Harbor: solved by their patches, and not by nothing."""

import json
import subprocess

import pytest
from tests.benchmarks.played import NOTHING
from tests.integrations.containers.image_layouts import needs_bubblewrap

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud.eval import NullRecorder
from hud_integrations.harbor import HarborEnvironment, convert_swe_bench

REPOSITORIES = {
    "shop/prices": (
        {
            "prices/__init__.py": "def total(prices):\n    return sum(prices[1:])\n",
            "tests/__init__.py": "",
            "tests/test_prices.py": "import unittest\n\nfrom prices import total\n\n\nclass Prices(unittest.TestCase):\n    def test_none(self):\n        self.assertEqual(total([]), 0)\n",
        },
        {"prices/__init__.py": "def total(prices):\n    return sum(prices)\n"},
        {
            "tests/test_prices.py": "import unittest\n\nfrom prices import total\n\n\nclass Prices(unittest.TestCase):\n    def test_none(self):\n        self.assertEqual(total([]), 0)\n\n    def test_all(self):\n        self.assertEqual(total([1, 2]), 3)\n"
        },
        ["test_all (tests.test_prices.Prices)"],
        ["test_none (tests.test_prices.Prices)"],
    ),
    "text/wrap": (  # A test in a new file, one that is moved, and names with a blank.
        {
            "wrap.py": "def wrap(text, width):\n    return [text]\n",
            "tests/__init__.py": "",
            "tests/old_wrap.py": "import unittest\n\n\nclass Old(unittest.TestCase):\n    def test_nothing(self):\n        pass\n",
            "notes and such.txt": "one\n",
        },
        {
            "wrap.py": "def wrap(text, width):\n    return [text[place : place + width] for place in range(0, len(text), width)] or ['']\n",
            "notes and such.txt": "one\ntwo\n",
        },
        {
            "tests/old_wrap.py": None,
            "tests/test_wrap.py": "import unittest\n\nfrom wrap import wrap\n\n\nclass Wrap(unittest.TestCase):\n    def test_short(self):\n        self.assertEqual(wrap('ab', 5), ['ab'])\n\n    def test_long(self):\n        self.assertEqual(wrap('abcde', 2), ['ab', 'cd', 'e'])\n",
        },
        ["tests.test_wrap.Wrap.test_long"],
        ["tests.test_wrap.Wrap.test_short"],
    ),
    "data/merge": (  # Its patch adds a file, and its tests read data of theirs.
        {
            "merge/__init__.py": "from merge.rows import merge\n",
            "merge/rows.py": "def merge(left, right):\n    return left\n",
            "tests/__init__.py": "",
            "tests/test_merge.py": "import unittest\n",
        },
        {
            "merge/rows.py": "from merge.order import ordered\n\n\ndef merge(left, right):\n    return ordered(left + right)\n",
            "merge/order.py": "def ordered(rows):\n    return sorted(rows)\n",
        },
        {
            "tests/rows.json": "[[3, 1], [2], [1, 2, 3]]\n",
            "tests/test_merge.py": "import json\nimport unittest\nfrom pathlib import Path\n\nfrom merge import merge\n\n\nclass Merge(unittest.TestCase):\n    def test_rows(self):\n        left, right, both = json.loads(Path(__file__).with_name('rows.json').read_text())\n        self.assertEqual(merge(left, right), both)\n",
        },
        ["test_rows (tests.test_merge.Merge.test_rows)"],
        [],
    ),
}


def git(folder, *arguments):
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", *author, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def put(folder, files):
    for path, text in files.items():
        if text is None:
            (folder / path).unlink()
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Clones of the repositories, and a row for each."""
    root, rows = tmp_path_factory.mktemp("clones"), []
    for name, (before, fix, tests, fails, passes) in REPOSITORIES.items():
        folder = root / name.replace("/", "__")
        folder.mkdir()
        git(folder, "init", "-q")
        put(folder, before)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "before")
        base = git(folder, "rev-parse", "HEAD").strip()
        patches = []
        for files in (fix, tests):
            put(folder, files)
            git(folder, "add", "-A")
            patches.append(git(folder, "diff", "--cached", "--no-renames"))
            git(folder, "commit", "-q", "-m", "after")
        rows.append(
            {
                "instance_id": f"{name.replace('/', '__')}-1",
                "repo": name,
                "base_commit": base,
                "problem_statement": f"{name} is wrong.",
                "patch": patches[0],
                "test_patch": patches[1],
                "FAIL_TO_PASS": json.dumps(fails),
                "PASS_TO_PASS": json.dumps(passes),
                "version": "1.0",
            }
        )
    return root, rows


async def rewards(folder, agent=None):
    env = HarborEnvironment(folder)
    job = await Taskset("rows", env.all_tasks()).run(
        agent or ScriptedAgent(env.oracle), recorder=NullRecorder()
    )
    return [run.error or run.reward for run in job.runs]


@pytest.mark.slow
@needs_bubblewrap
async def test_rows_are_solved_by_their_patches_and_by_nothing_else(made, tmp_path):
    root, rows = made
    folders = convert_swe_bench(rows, root, tmp_path / "tasks", runner="unittest")
    assert [folder.name for folder in folders] == [row["instance_id"] for row in rows]
    assert await rewards(tmp_path / "tasks") == [1.0, 1.0, 1.0]
    assert await rewards(tmp_path / "tasks", NOTHING) == [0.0, 0.0, 0.0]

    async def cheats(run):
        """Makes the tests pass by changing them, and ends the process of the tests."""
        shell = await run.open("ssh")
        await shell.run(
            "rm -f tests/test_*.py; for file in tests/__init__.py prices/__init__.py wrap.py merge/__init__.py; do echo 'import os; os._exit(0)' > $file; done"
        )
        return ""

    assert await rewards(tmp_path / "tasks", ScriptedAgent(cheats)) == [0.0, 0.0, 0.0]


def test_a_task_has_the_repository_without_its_history_and_without_its_new_tests(made, tmp_path):
    root, rows = made
    for folder, (before, _, tests, *_rest) in zip(
        convert_swe_bench(rows, root, tmp_path / "tasks"), REPOSITORIES.values(), strict=True
    ):
        repository = folder / "environment/repository"
        files = {
            path.relative_to(repository).as_posix(): path.read_text()
            for path in repository.rglob("*")
            if path.is_file()
        }
        assert files == before
        row = json.loads((folder / "tests/row.json").read_text())
        assert row["runner"] == "pytest"
        assert row["deleted"] == [path for path, text in tests.items() if text is None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch": None}, "lacks patch"),
        ({"instance_id": "../x"}, "lacks a usable id"),
        ({"repo": "no/where"}, "There is no clone"),
        ({"base_commit": "--output=x"}, "There is no clone"),
        ({"base_commit": "0" * 40}, "0000000"),
        (
            {"patch": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"},
            "patch does not apply",
        ),
        (
            {
                "test_patch": "diff --git a/../x b/../x\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+b\n"
            },
            "does not apply",
        ),
        ({"FAIL_TO_PASS": "[]"}, "no test in FAIL_TO_PASS"),
    ],
)
def test_a_row_that_makes_no_task_is_refused_and_nothing_is_written(
    made, tmp_path, change, message
):
    root, rows = made
    with pytest.raises(UsageError, match=message):
        convert_swe_bench([{**rows[0], **change}], root, tmp_path / "tasks")
    assert not (tmp_path / "tasks").exists()
