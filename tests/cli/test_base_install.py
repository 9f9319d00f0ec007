"""`pip install openhud`, without extras, is enough for `hud --help`, `hud eval`, `hud jobs` and `hud view`.

Here the packages of the extras are installed, so their import is refused; scripts/check-wheel, which CI runs, installs
the wheel into an environment that is really empty.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import httpx
import pytest
from packaging.requirements import Requirement
from tests.docs.blocks import ROOT
from tests.sources import PACKAGES

RUN = """
import json, sys
allowed = set(json.loads(sys.argv.pop(1)))

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if path is None and name not in allowed and name not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}: it is in no base dependency", name=name)

from hud.cli.main import main
sys.meta_path.insert(0, Refusing())
main()
"""


def base_modules() -> list[str]:
    """Return the modules of the base dependencies and of all that these need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted, seen = [Requirement(text) for text in project["dependencies"]], set()
    while wanted:
        one = wanted.pop()
        key = (_plain(one.name), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            needed = [Requirement(text) for text in requires(one.name) or ()]
        except PackageNotFoundError:
            continue
        wanted += [more for more in needed if _applies(more, one.extras or {""})]
    names = {"openhud", *(name for name, _ in seen)}
    owned = packages_distributions().items()
    own = ["env", "tasks", "agent", "sitecustomize", *(package.name for package in PACKAGES)]
    return own + [name for name, owners in owned if names & {_plain(one) for one in owners}]


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.slow
@pytest.mark.sqlite  # Another database needs its driver, which is an extra.
def test_the_commands_of_the_first_hour_need_base_dependencies_alone(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    kept |= {"HUD_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    program = [sys.executable, "-c", RUN, json.dumps(base_modules())]

    def hud(*arguments):
        done = subprocess.run(
            [*program, *arguments], cwd=tmp_path, env=kept, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "hud init" in hud("--help")
    hud("init", "e")
    assert re.search(r"mean reward +1\.000", hud("eval", "e/tasks.py", "e/agent.py", "--all"))
    assert "tasks · agent" in hud("jobs")
    with subprocess.Popen(
        [*program, "view", "--no-browser"],
        cwd=tmp_path,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as view:
        said = ""
        for line in view.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"http://\S+", said)
        assert found is not None, said
        with httpx.Client(follow_redirects=True, headers={"accept": "text/html"}) as browser:
            browser.get(found[0])
            jobs = browser.get(str(httpx.URL(found[0]).copy_with(path="/jobs", query=None)))
        view.terminate()
    assert "tasks · agent" in jobs.text


def test_the_readme_and_the_pipeline_name_it():
    assert "docs/install.md" in (ROOT / "README.md").read_text()
    assert "scripts/check-wheel" in (ROOT / ".ci" / "run").read_text()
