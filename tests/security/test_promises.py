"""Each promise of docs/security.md and docs/server-limits.md has tests, which the page names: `<!-- held by: tests/...::test_name, ... -->`."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "security.md", ROOT / "docs" / "server-limits.md"]
HELD = re.compile(r"<!-- held by: (.*?) -->", re.DOTALL)
FREE = re.compile(r"<!-- advice -->")
"""Stands at a block that promises nothing: it introduces others, or says what an operator or a team has to do."""


def blocks():
    """Return the paragraphs, list items and tables of the pages, each with the comments that follow it."""
    found = []
    for part in re.split(r"\n\s*\n", "\n\n".join(page.read_text() for page in PAGES)):
        if part.startswith("#") or part.lstrip().startswith("<!-- not run"):
            continue
        items = re.split(r"\n(?=- )", part) if part.startswith("- ") else [part]
        found += [item for item in items if not item.startswith("    ")]
    return found


def functions_of(path):
    """Return the names of the functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


BLOCKS = blocks()


def test_there_are_promises():
    assert sum(HELD.search(block) is not None for block in BLOCKS) > 25


@pytest.mark.parametrize("block", BLOCKS, ids=[block[:40] for block in BLOCKS])
def test_a_promise_names_the_tests_that_hold_it(block):
    held = HELD.search(block)
    if held is None:
        assert FREE.search(block), f"This names no test, and is not marked as advice: {block[:200]}"
        return
    for one in re.split(r",\s*", held[1].strip()):
        path, _, name = one.partition("::")
        assert (ROOT / path).is_file(), one
        assert name in functions_of(path), one
