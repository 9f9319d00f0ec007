"""Environments load from files and folders, whatever was loaded before, and errors say where."""

import sys
from types import ModuleType

import pytest

from hud.environment import load_environment
from hud.errors import NotFoundError, UsageError

ENVIRONMENT = """
from hud import Environment

env = Environment({name!r})

@env.template()
async def ask():
    yield "?"
    yield 1.0
"""


def folder(tmp_path, name, extra=""):
    home = tmp_path / name
    home.mkdir()
    (home / "env.py").write_text(ENVIRONMENT.format(name=name) + extra)
    return home


def test_a_folder_is_loaded_by_its_environment_file(tmp_path):
    assert load_environment(folder(tmp_path, "one")).name == "one"


@pytest.mark.slow
def test_two_folders_may_call_their_files_the_same(tmp_path):
    for name in ("one", "two", "one"):
        home = tmp_path / name
        if not home.exists():
            folder(tmp_path, name)
            (home / "tasks.py").write_text("from env import env, ask\ntask = ask()\n")
        assert load_environment(home / "tasks.py").name == name


@pytest.mark.slow
def test_two_folders_may_call_their_packages_the_same(tmp_path):
    """Files beside a file, packages with their modules, and folders without `__init__.py`."""
    code = (
        "from hud import Environment\n"
        "from near import NAME as FILE\n"
        "from helpers import NAME as PACKAGE\n"
        "from helpers.tools import NAME as MODULE\n"
        "from loose.tools import NAME as LOOSE\n"
        "env = Environment(f'{FILE}-{PACKAGE}-{MODULE}-{LOOSE}')\n"
    )
    for name in ("first", "second", "first"):
        folder = tmp_path / name
        for file in ("near.py", "helpers/__init__.py", "helpers/tools.py", "loose/tools.py"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(f"NAME = {name!r}\n")
        (folder / "env.py").write_text(code)
        assert load_environment(folder).name == "-".join([name] * 4)


def test_objects_that_stand_for_modules_are_left_alone(tmp_path, monkeypatch):
    """torch has some that answer every name."""

    class Answering(ModuleType):
        def __getattr__(self, name):
            return Answering(name)

    monkeypatch.setitem(sys.modules, "answering", Answering("answering"))
    (tmp_path / "answering.py").write_text("")
    (tmp_path / "env.py").write_text("from hud import Environment\nenv = Environment('depot')\n")
    assert load_environment(tmp_path / "env.py").name == "depot"


def test_the_attribute_or_the_name_picks_one_of_several(tmp_path):
    home = folder(tmp_path, "one", "other = Environment('two')\n")
    assert load_environment(f"{home}/env.py:other").name == "two"
    assert load_environment(home, name="one").name == "one"
    with pytest.raises(UsageError, match=r"several environments \(one, two\)"):
        load_environment(home)
    with pytest.raises(UsageError, match="has no 'missing'"):
        load_environment(f"{home}/env.py:missing")
    with pytest.raises(UsageError, match="no Environment named 'three'"):
        load_environment(home, name="three")


def test_what_is_not_there_is_said_so(tmp_path):
    with pytest.raises(NotFoundError, match="There is no file"):
        load_environment(tmp_path / "missing.py")
    with pytest.raises(NotFoundError, match="has no env.py"):
        load_environment(tmp_path)
    with pytest.raises(NotFoundError, match="no_such_module"):
        load_environment("no_such_module:env")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", r"env\.py:1: "),
        ("x = 1\nx.nothing()\n", r"env\.py:2: AttributeError"),
        ("import no_such_neighbour\n", r"env\.py:1: ModuleNotFoundError"),
        ("import os\nos.environ['NO_SUCH_KEY']\n", r"env\.py:2: KeyError: 'NO_SUCH_KEY'"),
        ("import json\n\njson.loads('{')\n", r"env\.py:3: JSONDecodeError"),
        ("x = 1\n", "holds no Environment"),
    ],
)
def test_a_file_that_cannot_be_loaded_names_file_and_line(tmp_path, text, said):
    (tmp_path / "env.py").write_text(text)
    with pytest.raises(UsageError, match=said):
        load_environment(tmp_path / "env.py")
