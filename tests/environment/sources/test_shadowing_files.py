"""Files of environments with names of modules: refused where other modules import them, loaded everywhere else."""

import sys

import pytest

from hud.environment import load_environment
from hud.errors import UsageError

CODE = 'from hud import Environment\nenv = Environment("depot")\n'


@pytest.mark.slow
@pytest.mark.parametrize("name", ["calendar", "json", "hud", "pydantic", "orjson", "anyio", "mcp"])
def test_a_file_with_the_name_of_an_imported_module_is_refused(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(CODE)
    with pytest.raises(UsageError, match=f"rename it, for example to my_{name}.py"):
        load_environment(tmp_path / f"{name}.py")


@pytest.mark.parametrize(
    "name", ["hud", "pydantic", "numpy", "hud_integrations", "hud_dashboard", "hud_kernels"]
)
def test_a_neighbour_with_the_name_of_a_library_is_refused(tmp_path, name):
    (tmp_path / "env.py").write_text(CODE)
    (tmp_path / f"{name}.py").write_text("")
    with pytest.raises(UsageError, match=f"rename it, for example to my_{name}.py"):
        load_environment(tmp_path / "env.py")


@pytest.mark.parametrize("name", ["hud", "numpy", "json", "hud_benchmarks"])
def test_a_package_in_the_folder_with_the_name_of_a_library_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "env.py").write_text(CODE)
    (tmp_path / name).mkdir()
    assert (
        load_environment(tmp_path / "env.py").name == "depot"
    )  # A folder without code shadows nothing.
    (tmp_path / name / "__init__.py").write_text("")
    with pytest.raises(UsageError, match=f"rename it, for example to my_{name}[.]"):
        load_environment(tmp_path / "env.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test", "tests", "tasks", "agents", "my env", "docs", "depot"])
def test_other_names_are_loaded(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(CODE)
    assert load_environment(tmp_path / f"{name}.py").name == "depot"
