"""Registered dialects. They are imported once for each process."""

from __future__ import annotations

import functools
from collections.abc import Set

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.dialect import CHAT
from hud.inference.dialects.dialect import GROUP, Dialect, NamedProvider, ProviderDialect
from hud.plugs import load_all

_MODELS = ("/models/", "/v1/models/")
"""Prefixes of methods of models."""


@functools.cache
def dialects() -> dict[str, Dialect]:
    """Return every dialect by its name.

    Raises `UsageError` for one that cannot be imported or lacks an attribute, for a route outside of its prefixes, and for two of
    a family in which providers are called.
    """
    loaded = load_all(GROUP, Dialect)
    names: dict[str, str] = {}
    for name, dialect in loaded.items():
        _check(name, dialect)
        if isinstance(dialect, ProviderDialect) and names.setdefault(dialect.family, name) != name:
            raise UsageError(
                f"{GROUP} {names[dialect.family]!r} and {name!r} are both of the family {dialect.family!r}; providers of a "
                "family are called in one dialect. Uninstall one of them."
            )
    return loaded


def _check(name: str, dialect: Dialect) -> None:
    """Raise `UsageError` for a dialect that lacks an attribute, or with a route that another one may have."""
    needed = Dialect.__annotations__ | (
        ProviderDialect.__annotations__ if isinstance(dialect, ProviderDialect) else {}
    )
    missing = [attribute for attribute in needed if not hasattr(dialect, attribute)]
    if missing:
        raise UsageError(
            f"{GROUP} {name!r} has no attribute {missing[0]!r}; every dialect needs one."
        )
    for route in dialect.routes:
        for path in route.paths:
            if not path.startswith((*dialect.prefixes, *(_MODELS if dialect.methods else ()))):
                raise UsageError(
                    f"{GROUP} {name!r} has the route {path}, which is below none of its prefixes ({', '.join(dialect.prefixes)}); "
                    "give every route of it a path below one."
                )


@functools.cache
def provider_dialects() -> dict[str, ProviderDialect]:
    """Return the dialects in which providers are called, by their family."""
    return {
        dialect.family: dialect
        for dialect in dialects().values()
        if isinstance(dialect, ProviderDialect)
    }


def provider_dialect(family: str) -> ProviderDialect:
    """Return the dialect of a family's providers. Raises `UsageError`, with the registered ones, for an unknown family."""
    dialect = provider_dialects().get(family)
    if dialect is None:
        raise UsageError(
            f"There is no dialect {family!r}: there are {', '.join(sorted(provider_dialects()))}."
        )
    return dialect


@functools.cache
def named_providers() -> tuple[tuple[NamedProvider, ProviderDialect], ...]:
    """Return the providers that are known by their models' names, each with its dialect."""
    return tuple(
        (dialect.provider, provider_dialect(dialect.family))
        for dialect in dialects().values()
        if dialect.provider is not None
    )


def dialect_of(path: str, headers: Set[bytes]) -> Dialect:
    """Return the dialect of a request, by its path or the names of its headers. Default: chat completions."""
    spoken = (dialect for dialect in dialects().values() if dialect.is_spoken(path, headers))
    return next(spoken, CHAT)
