"""The words of the code: how docstrings open, and which environment variables there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "hud"
PAGE = SOURCE.parents[1] / "docs" / "architecture.md"
OPENING = re.compile(
    r"(what|who|whoever|whose|whatever|somebody|where|which|why|how|when|those)\b", re.IGNORECASE
)
VARIABLE = re.compile(r"HUD_[A-Z_]+")


def strings_of(path: Path) -> list[tuple[int, str]]:
    """Return the constant strings of a file with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def docstrings_of(path: Path) -> list[tuple[int, str]]:
    """Return every string that is a statement by itself: of modules, classes, functions, fields and constants."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.lineno, node.value.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


@pytest.mark.parametrize("room", sorted(one.name for one in SOURCE.iterdir() if one.is_dir()))
def test_docstrings_open_with_a_noun_or_an_imperative(room):
    riddles = [
        f"{path.relative_to(SOURCE)}:{line}: {text.splitlines()[0]}"
        for path in (SOURCE / room).rglob("*.py")
        if "presets" not in path.parts
        for line, text in docstrings_of(path)
        if OPENING.match(text)
    ]
    assert riddles == []


def test_every_environment_variable_is_in_the_table_of_the_architecture_page():
    table = PAGE.read_text(encoding="utf-8").split("## Environment variables")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(HUD_[A-Z_]+)`", table))
    used = {
        text
        for path in SOURCE.rglob("*.py")
        for _, text in strings_of(path)
        if VARIABLE.fullmatch(text)
    }
    assert used == documented


def test_variables_are_read_by_name_in_the_settings_alone():
    named = re.compile(r"os\.(environ\.get\(|environ\[|getenv\()\s*[\"']")
    readers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "presets" not in path.parts and named.search(path.read_text(encoding="utf-8"))
    }
    # The guard runs inside a workspace's sandbox, where the package is not.
    assert readers == {"settings.py", "environment/workspace/inside/guard/sitecustomize.py"}
