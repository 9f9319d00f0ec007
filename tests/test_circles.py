"""Folders of a room import one way: no folder is part of a circle of imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.sources import CORE, PACKAGES

ROOMS = sorted(
    folder
    for package in PACKAGES
    for folder in (package.iterdir() if package == CORE else [package])
    if folder.is_dir() and folder.name != "__pycache__"
)
"""Rooms of the core, and each other package as a room."""


def imported(tree: ast.AST) -> set[str]:
    """Return the modules that a file names in import statements, at any depth, also those for type checking alone."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def folders_imported(room: Path) -> dict[str, set[str]]:
    """Return, for each folder of a room, the other folders that its files import."""
    name = ".".join(
        room.relative_to(next(p for p in PACKAGES if p in (room, *room.parents)).parent).parts
    )
    folders = {folder.name for folder in room.iterdir() if (folder / "__init__.py").is_file()}
    graph = defaultdict(set)
    for folder in sorted(folders):
        for path in (room / folder).rglob("*.py"):
            for module in imported(ast.parse(path.read_text(encoding="utf-8"))):
                if module.startswith(f"{name}."):
                    graph[folder].add(module.removeprefix(f"{name}.").partition(".")[0])
        graph[folder] = (graph[folder] & folders) - {folder}
    return graph


def circle_of(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes that reach themselves."""
    reached = {node: set(targets) for node, targets in graph.items()}
    for _ in graph:
        for node in reached:
            reached[node] |= {far for near in reached[node] for far in reached.get(near, ())}
    return sorted(node for node in reached if node in reached[node])


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_no_folder_imports_itself_through_others(room):
    graph = folders_imported(room)
    circle = circle_of(graph)
    assert circle == [], {node: sorted(graph[node] & set(circle)) for node in circle}


def test_a_circle_is_noticed():
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
