"""The words of the code: how docstrings open, which errors they name, and which environment variables there are."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hud import errors
from tests.sources import ROOT, files, folder_of, place, rooms

PAGE = ROOT / "docs" / "architecture.md"
OPENING = re.compile(
    r"(what|who|whoever|whose|whatever|somebody|where|which|why|how|when|those)\b", re.IGNORECASE
)
PERSONIFIED = re.compile(
    r"\b((is|are|was|were|been|be) told|hears?|whoever|somebody|nobody|anybody|who asks)\b",
    re.IGNORECASE,
)
"""Words for people where a program is meant: a client, a caller, a request."""
UNREAD = (
    "hud_platform/environments/build_queue.py",
    "hud_platform/environments/builder.py",
)
"""Files of the platform that still have such words."""
VARIABLE = re.compile(r"HUD_[A-Z_]+")
Function = ast.FunctionDef | ast.AsyncFunctionDef
INTERFACES = (
    "hud_integrations/ray/commands/",
    "hud_integrations/tinker/service/routes/",
    "hud_integrations/vllm/command.py",
    "hud_integrations/vllm/weight_files/command.py",
    "hud/cli",
    "hud_platform/routes",
    "hud_dashboard",
)
"""Rooms in which an error is the interface's answer: an exit code or an HTTP status."""
BASES = {
    name: {base.__name__ for base in kind.__mro__ if issubclass(base, errors.HudError)}
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.HudError)
}
"""For each error of `hud.errors` its own name and those of its bases."""


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


def comments_of(path: Path) -> list[tuple[int, str]]:
    """Return the comments of a file with their lines."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return [(one.start[0], one.string) for one in tokens if one.type == tokenize.COMMENT]


def prose_of(path: Path) -> list[tuple[int, str]]:
    """Return docstrings and comments of a Python file, all lines of a template, script or style sheet."""
    if path.suffix == ".py":
        return docstrings_of(path) + comments_of(path)
    return list(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))


def public_functions(body: Iterable[ast.stmt]) -> Iterator[Function]:
    """Yield the public functions of a module and the public methods of its public classes."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from public_functions(node.body)
            else:
                yield node


def name_of(node: ast.expr | None) -> str:
    """Return the last name of `Name`, `module.Name` and `Name(...)`; empty for another expression."""
    if isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "id", getattr(node, "attr", ""))


def caught_by(node: ast.Try) -> set[str]:
    """Return the names of the exceptions that the handlers of a `try` catch."""
    kinds = [handler.type for handler in node.handlers]
    each = [one for kind in kinds for one in (kind.elts if isinstance(kind, ast.Tuple) else [kind])]
    return {"Exception" if one is None else name_of(one) for one in each}


def raised_in(nodes: Iterable[ast.AST], caught: frozenset[str] = frozenset()) -> set[str]:
    """Return the errors of `hud.errors` that statements raise and do not catch, outside nested functions."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Raise):
            name = name_of(node.exc)
            if name in BASES and not caught & {*BASES[name], "Exception", "BaseException"}:
                found.add(name)
        elif isinstance(node, ast.Try):
            found |= raised_in(node.body, caught | caught_by(node))
            found |= raised_in([*node.handlers, *node.orelse, *node.finalbody], caught)
        elif not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            found |= raised_in(ast.iter_child_nodes(node), caught)
    return found


def unnamed_errors(source: str) -> list[str]:
    """Return `function: error` for each error that a public function raises and its docstring does not name."""
    missing = []
    for function in public_functions(ast.parse(source).body if "raise " in source else []):
        text = ast.get_docstring(function) or ""
        named = set(re.findall(r"\w+", text)) if re.search(r"\b[Rr]aises?\b", text) else set()
        missing += [
            f"{function.name}: {error}"
            for error in sorted(raised_in(function.body))
            if not named & BASES[error]
        ]
    return missing


@pytest.mark.parametrize("room", rooms())
def test_docstrings_open_with_a_noun_or_an_imperative(room):
    riddles = [
        f"{place(path)}:{line}: {text.splitlines()[0]}"
        for path in folder_of(room).rglob("*.py")
        if "presets" not in path.parts
        for line, text in docstrings_of(path)
        if OPENING.match(text)
    ]
    assert riddles == []


@pytest.mark.parametrize("room", [room for room in rooms() if room.startswith("hud_platform/")])
def test_prose_does_not_personify(room):
    personified = [
        f"{place(path)}:{line}: {found.group()}"
        for suffix in ("py", "html", "js", "css")
        for path in folder_of(room).rglob(f"*.{suffix}")
        if "vendor" not in path.parts and place(path) not in UNREAD
        for line, text in prose_of(path)
        for found in PERSONIFIED.finditer(text)
    ]
    assert personified == []


def test_docstrings_name_the_errors_that_a_function_raises():
    silent = [
        f"{place(path)}: {problem}"
        for path in files()
        if "presets" not in path.parts and not place(path).startswith(INTERFACES)
        for problem in unnamed_errors(path.read_text(encoding="utf-8"))
    ]
    assert silent == []


def test_every_environment_variable_is_in_the_table_of_the_architecture_page():
    table = PAGE.read_text(encoding="utf-8").split("## Environment variables")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(HUD_[A-Z_]+)`", table))
    naming = [path for path in files() if VARIABLE.search(path.read_text(encoding="utf-8"))]
    used = {text for path in naming for _, text in strings_of(path) if VARIABLE.fullmatch(text)}
    assert used == documented


def test_variables_are_read_by_name_in_the_settings_alone():
    named = re.compile(r"os\.(environ\.get\(|environ\[|getenv\()\s*[\"']")
    readers = {
        place(path)
        for path in files()
        if "presets" not in path.parts and named.search(path.read_text(encoding="utf-8"))
    }
    # The incident lab's shop is copied and started as services of its own, which have their settings as containers do.
    readers = {name for name in readers if not name.startswith("hud_benchmarks/incident_lab/shop/")}
    # The guard runs inside a workspace's sandbox, where the package is not.
    assert readers == {"hud/settings.py", "hud/environment/workspace/inside/guard/sitecustomize.py"}
