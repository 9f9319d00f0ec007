"""Names say what a value is: none of the package is a placeholder."""

import ast
from collections.abc import Iterator

from tests.sources import files, place

PLACEHOLDERS = frozenset(
    ("found", "one", "known", "given", "said", "told", "asked", "kept", "mine", "whole", "each")
)
"""Names that docs/style.md refuses."""


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module binds: locals, parameters, fields, attributes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_no_name_is_a_placeholder():
    placeholders = [
        f"{place(path)}: {name}"
        for path in files()
        for name in bindings(ast.parse(path.read_text(encoding="utf-8")))
        if name in PLACEHOLDERS
    ]
    assert not placeholders, f"name what the value is (docs/style.md): {placeholders}"


def test_all_kinds_of_bindings_are_counted():
    source = "def told(given, *, kept=1):\n    known: int = 1\n    for one in []: self.said = one\n    [found for found in []]"
    assert PLACEHOLDERS.intersection(bindings(ast.parse(source))) == {
        *("told", "given", "kept", "known", "one", "said", "found")
    }
