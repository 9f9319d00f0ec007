"""Imports between rooms are statements, which the import contract sees; a module named in a string hides from it."""

from __future__ import annotations

import ast
import re

import pytest

from tests.sources import ROOT, files, folder_of, place


def named_imports(tree: ast.AST) -> list[int]:
    """Lines that import a module of the package by its name in a string."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        if name not in ("import_module", "__import__"):
            continue
        said = node.args[0]
        if isinstance(said, ast.JoinedStr):
            said = said.values[0]
        if isinstance(said, ast.Constant) and str(said.value).startswith("hud"):
            found.append(node.lineno)
    return found


def test_no_module_of_the_package_is_imported_by_its_name_in_a_string():
    hidden = {}
    for path in files():
        if path.name != "__init__.py" and not place(path).startswith("hud/cli/"):
            lines = named_imports(ast.parse(path.read_text(encoding="utf-8")))
            hidden |= {place(path): lines} if lines else {}
    assert hidden == {}


@pytest.mark.parametrize(
    "code",
    [
        'import importlib\nimportlib.import_module("hud.eval")',
        'from importlib import import_module\nimport_module(f"hud.{room}")',
        '__import__("hud_platform")',
    ],
)
def test_an_import_by_name_is_noticed(code):
    assert named_imports(ast.parse(code))


def test_the_way_of_a_token_names_at_most_thirty_files_that_are_there():
    page = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    way = page.split("## The way of a token")[1].split("\n## ")[0]
    files = re.findall(r"^\d+\. `([^`]+)`", way, re.MULTILINE)
    assert 0 < len(files) == len(set(files)) <= 30
    assert [name for name in files if not folder_of(name).is_file()] == []


@pytest.mark.parametrize(
    "room",
    [
        "hud/agents",
        "hud/capabilities",
        "hud/engine",
        "hud/environment",
        "hud/environment/channel",
        "hud/environment/mcp",
        "hud/environment/screens",
        "hud/environment/workspace",
        "hud/eval",
        "hud/learning",
        "hud/trace",
        "hud/train",
        "hud_platform",
    ],
)
def test_the_root_of_a_large_room_holds_a_dozen_files(room):
    assert len(list(folder_of(room).glob("*.py"))) <= 12
