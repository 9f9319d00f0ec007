"""Imports between rooms are statements, which the import contract sees; a module named in a string hides from it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import pytest

from hud.plugs import own_entry_points
from tests.sources import CORE, ROOT, files, folder_of, place


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
        source = path.read_text(encoding="utf-8")
        if "import_module" not in source and "__import__" not in source:
            continue
        if path.name != "__init__.py" and not place(path).startswith("hud/cli/"):
            lines = named_imports(ast.parse(source))
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


def first_table(title: str) -> list[list[str]]:
    """Return the cells of the first table of a section of docs/architecture.md, without its head."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_architecture_page_has_the_rooms_of_the_core_and_their_folders():
    described = {
        room.strip("`/"): re.findall(r"`(\w+)/`", folders)
        for room, _, folders in first_table("Rooms")
        if room.endswith("/`")
    }
    assert described == {
        room.name: sorted(path.parent.name for path in room.glob("*/__init__.py"))
        for room in CORE.iterdir()
        if (room / "__init__.py").is_file()
    }


def test_the_architecture_page_has_the_groups_by_which_packages_join():
    described = {
        re.search(r"`(\w+)`", name)[1]: set(re.findall(r"`(hud\.\w+)`", joins))
        for _, name, _, joins in first_table("Packages")
    }
    registered = defaultdict(set)
    for point in own_entry_points():
        if point.group.startswith("hud."):
            registered[point.value.partition(".")[0]].add(point.group)
    assert described == registered


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
