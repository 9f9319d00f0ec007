"""Pages of the API reference as Markdown: a line `::: hud.eval.Job` stands for the signature and docstrings of that name.
The site renders these lines with mkdocstrings; agents read this form of them.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

_LINE = re.compile(r"^::: (\S+)$", re.MULTILINE)


def expand(text: str) -> str:
    """Return a page with the documentation of each name in place of its line."""
    return _LINE.sub(lambda line: "\n".join(_described(line[1])), text)


def _described(path: str) -> Iterator[str]:
    value = pkgutil.resolve_name(path)
    name = path.rpartition(".")[2]
    yield f"## {name}\n"
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        yield f"`{name} = {str(value)[:200]}`" if not isinstance(value, str) else "A constant."
        return
    yield f"```python\n{name}{_signature(value)}\n```\n"
    yield inspect.getdoc(value) or ""
    for member, method in _methods(value) if inspect.isclass(value) else ():
        yield f"\n### {name}.{member}\n"
        yield f"```python\n{member}{_signature(method)}\n```\n"
        yield inspect.getdoc(method) or ""


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods that a class defines itself, in their order."""
    for name, value in vars(kind).items():
        method = getattr(value, "__func__", value)
        if inspect.isroutine(method) and not name.startswith("_") and method.__doc__:
            yield name, method


def _signature(value: Any) -> str:
    """Return the signature of a function or class; empty for a builtin without one."""
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
