"""A task for programs: `total.py` is wrong, and `check.py` shows it."""

import contextlib
import os
import subprocess
import sys

from tests.integrations.programs.recipes import NPM
from tests.platform.gateway.scripted_server import scripted_server

WRONG = "def total(a, b):\n    return a - b\n"
CHECK = "from total import total\n\nassert total(2, 3) == 5\nprint('passed')\n"


@contextlib.contextmanager
def played(tmp_path, recipe, opened=lambda url: "local"):
    """Have a program solve the task, with the key that `opened` returns; yields the server's URL and the model."""
    recipe.skip_unless_installed()
    work, home = tmp_path / "work", tmp_path / "home"
    for folder in (work, home):
        folder.mkdir()
    (work / "total.py").write_text(WRONG)
    (work / "check.py").write_text(CHECK)
    with scripted_server(tmp_path / "platform", recipe.turns(work), recipe.mark) as (url, model):
        key = opened(url)
        for path, text in recipe.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text.replace("SERVER", url).replace("SECRET", key))
        done = subprocess.run(
            recipe.command,
            cwd=work,
            env={**environment(url, home, key), **recipe.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert recipe.says in done.stdout
        assert (work / "total.py").read_text() == WRONG.replace("-", "+")
        yield url, model


def environment(url, home, key):
    """Return the variables by which programs find a server; nothing else of this machine's."""
    chat = f"{url}/v1"
    return {
        "PATH": os.pathsep.join([str(NPM), os.path.dirname(sys.executable), "/usr/bin", "/bin"]),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_PROXY": "127.0.0.1",
        "HUD_API_KEY": key,
        "OPENAI_API_KEY": key,
        "OPENAI_BASE_URL": chat,
        "OPENAI_API_BASE": chat,
        "OPENAI_MODEL": "scripted",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_BASE": url,
        "GEMINI_API_KEY": key,
        "GEMINI_MODEL": "scripted",
        "GOOGLE_GEMINI_BASE_URL": url,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
