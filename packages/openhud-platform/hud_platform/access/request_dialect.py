"""The dialect of a request: the form of its errors, also where no endpoint answers."""

from __future__ import annotations

from starlette.types import Scope

from hud.inference.dialects import registry
from hud.inference.dialects.dialect import Dialect


def dialect_of(scope: Scope) -> Dialect:
    """Return the dialect of a request, by its headers or its path. Default: chat completions."""
    return registry.dialect_of(scope["path"], {name for name, _ in scope["headers"]})
