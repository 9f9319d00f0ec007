"""The examples run, and the README shows one of them as it is."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hud.cli.main import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))


def test_the_readme_shows_the_example_as_it_is():
    code = (ROOT / "examples" / "arithmetic.py").read_text().strip()
    assert f"```python\n{code}\n```" in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_script_solves_the_example():
    examples = ROOT / "examples"
    arguments = [
        "eval",
        f"{examples}/arithmetic.py",
        f"{examples}/arithmetic_agent.py",
        "--all",
        "--json",
    ]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert '"mean": 1.0' in result.output or '"reward": 1.0' in result.output
