"""The snippets of docs/workspace.md, run as they are written."""

import re
import shutil
from pathlib import Path

import pytest

from hud.eval import LocalRuntime, Taskset
from hud.trace import ToolStep

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
PAGE = Path(__file__).parents[2] / "docs" / "workspace.md"


async def test_the_pages_snippets_work_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    for path, text in {
        "repos/calc/calc.py": "def add(a, b):\n    return a + b  # TODO: name it\n",
        "hidden/tests/test_calc.py": (
            "import unittest\nfrom calc import add\n\n\n"
            "class Sums(unittest.TestCase):\n    def test_it(self):\n        assert add(1, 2) == 3\n"
        ),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(snippet, names)
    job = await Taskset("docs", [names["repair"](bug="sums")]).run(
        names["agent"], runtime=LocalRuntime(names["env"])
    )
    assert job.errors == []
    assert job.reward == 1.0
    steps = [step for step in job.runs[0].trace.steps if isinstance(step, ToolStep)]
    assert "calc.py" in steps[0].result.content[0].text
