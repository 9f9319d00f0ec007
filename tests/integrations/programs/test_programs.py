"""Real programs, with their defaults, mend a file through the gateway: the model is local and samples the turns of a script."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("minisweagent", reason="scripts/setup-integration programs")

from tests.integrations.programs.recipes import NPM, RECIPES
from tests.platform.gateway.scripted_server import scripted_server

WRONG = "def total(a, b):\n    return a - b\n"
CHECK = "from total import total\n\nassert total(2, 3) == 5\nprint('passed')\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RECIPES)
def test_a_program_solves_a_task_with_its_defaults(tmp_path, name):
    recipe = RECIPES[name]
    work, home = tmp_path / "work", tmp_path / "home"
    for folder in (work, home):
        folder.mkdir()
    (work / "total.py").write_text(WRONG)
    (work / "check.py").write_text(CHECK)
    with scripted_server(tmp_path / "platform", recipe.turns(work), recipe.mark) as (url, model):
        for path, text in recipe.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text.replace("SERVER", url))
        done = subprocess.run(
            recipe.command,
            cwd=work,
            env={**environment(url, home), **recipe.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert recipe.says in done.stdout
    assert (work / "total.py").read_text() == WRONG.replace("-", "+")
    assert model.extended() == (recipe.extends, 3)


def environment(url, home):
    """Return the variables by which programs find a server; nothing else of this machine's."""
    chat = f"{url}/v1"
    return {
        "PATH": os.pathsep.join([str(NPM), os.path.dirname(sys.executable), "/usr/bin", "/bin"]),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_PROXY": "127.0.0.1",
        "HUD_API_KEY": "local",
        "OPENAI_API_KEY": "local",
        "OPENAI_BASE_URL": chat,
        "OPENAI_API_BASE": chat,
        "OPENAI_MODEL": "scripted",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "ANTHROPIC_API_KEY": "local",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_BASE": url,
        "GEMINI_API_KEY": "local",
        "GEMINI_MODEL": "scripted",
        "GOOGLE_GEMINI_BASE_URL": url,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
