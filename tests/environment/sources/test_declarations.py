"""Environments are found in a source without running it."""

import pytest

from hud.environment.sources.declarations import declared_names, entry_of
from hud.errors import NotFoundError, UsageError


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_names_are_read_and_nothing_runs(tmp_path):
    write(
        tmp_path,
        env="import not_installed_here\nimport hud\n"
        "a = hud.Environment('first')\nb = Environment(name='second', version='2')\n"
        "c = Environment()\nd = Environment(f'{a}')\nraise SystemExit\n",
    )
    assert declared_names(tmp_path / "env.py") == ["first", "second", "environment"]


@pytest.mark.parametrize("text", ["def (", "\0", "x = " + "(" * 5000])
def test_what_is_no_python_declares_nothing(tmp_path, text):
    (tmp_path / "env.py").write_text(text)
    assert declared_names(tmp_path / "env.py") == []


def test_the_usual_files_come_first_and_the_name_decides(tmp_path):
    write(tmp_path, tasks="", shop="e = Environment('shop')", bank="e = Environment('bank')")
    assert entry_of(tmp_path).name == "tasks.py"
    assert entry_of(tmp_path, "bank").name == "bank.py"
    write(tmp_path, env="from shop import e", environment="e = Environment('x')")
    assert entry_of(tmp_path).name == "environment.py"
    assert entry_of(tmp_path, "unknown").name == "environment.py"


def test_one_file_of_any_name_is_enough_and_two_are_too_many(tmp_path):
    with pytest.raises(NotFoundError, match="no other file"):
        entry_of(tmp_path)
    write(tmp_path, tool="x = 1", shop="NAME = 's'\ne = Environment(NAME)")
    assert entry_of(tmp_path).name == "shop.py"
    write(tmp_path, bank="e = Environment('bank')")
    with pytest.raises(UsageError, match="bank.py, shop.py"):
        entry_of(tmp_path)
