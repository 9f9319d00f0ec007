"""Names say what a value is: the number of placeholders in the package may only fall."""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.sources import files, place

PLACEHOLDERS = frozenset(
    ("found", "one", "known", "given", "said", "told", "asked", "kept", "mine", "whole", "each")
)
"""Names that docs/style.md refuses."""
MOST = 88
"""Bindings of such names that are left. Lower it with every change that removes some."""


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


def test_placeholder_names_only_become_fewer():
    counts = Counter()
    for path in files():
        names = bindings(ast.parse(path.read_text(encoding="utf-8")))
        counts["/".join(place(path).split("/")[:2])] += sum(name in PLACEHOLDERS for name in names)
    assert counts.total() <= MOST, f"name what the value is (docs/style.md): {counts}"
    assert counts.total() > MOST - 25, f"set MOST to {counts.total()}"


def test_all_kinds_of_bindings_are_counted():
    source = "def told(given, *, kept=1):\n    known: int = 1\n    for one in []: self.said = one\n    [found for found in []]"
    assert PLACEHOLDERS.intersection(bindings(ast.parse(source))) == {
        *("told", "given", "kept", "known", "one", "said", "found")
    }
