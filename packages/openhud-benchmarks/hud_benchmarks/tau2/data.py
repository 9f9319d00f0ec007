"""The package's data: tasks, splits, policies and databases. Files are read, no Python of the package is imported."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import tomllib
from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from importlib import metadata
from pathlib import Path
from typing import Any

from hud import exact_json
from hud_benchmarks.tau2.benchmarks import PACKAGE


@functools.cache
def tasks(domain: str) -> dict[str, dict[str, Any]]:
    """Return the tasks of a domain, by their ids."""
    name = "tasks.json.gz" if domain == "telecom" else "tasks.json"
    return {str(row["id"]): row for row in json.loads(_read(f"domains/{domain}/{name}"))}


@functools.cache
def split_ids(domain: str, split: str) -> list[str]:
    """Return the ids of a split of the package's, in its order: `train` or `test`."""
    task_ids: list[str] = json.loads(_read(f"domains/{domain}/split_tasks.json"))[split]
    return task_ids


@functools.cache
def text(name: str) -> str:
    """Return a text of the package, such as `domains/airline/policy.txt`."""
    return _read(name).decode()


def records(domain: str) -> dict[str, Table]:
    """Return the tables of a domain's database, the caller's own to change."""
    return {name: Table(rows) for name, rows in _shared(domain).items()}


def telecom_records() -> dict[str, Any]:
    """Return the carrier's database, the caller's own to change."""
    return tomllib.loads(text("domains/telecom/db.toml"))


class Table(MutableMapping[str, dict[str, Any]]):
    """Rows by id, over rows that all runs share: a row is copied when it is looked up by its id.

    Iteration copies nothing: rows of `items` and `values` are to be read only.
    """

    def __init__(self, shared: dict[str, dict[str, Any]]) -> None:
        self.shared = shared
        self.own: dict[str, dict[str, Any]] = {}

    def __getitem__(self, key: str) -> dict[str, Any]:
        if key not in self.own:
            self.own[key] = copy.deepcopy(self.shared[key])
        return self.own[key]

    def __setitem__(self, key: str, row: dict[str, Any]) -> None:
        self.own[key] = row

    def __delitem__(self, key: str) -> None:
        raise TypeError("Rows are not deleted.")

    def __contains__(self, key: object) -> bool:
        return key in self.own or key in self.shared

    def __iter__(self) -> Iterator[str]:
        yield from self.shared
        yield from (key for key in self.own if key not in self.shared)

    def __len__(self) -> int:
        return len(self.shared.keys() | self.own.keys())

    def items(self) -> ItemsView[str, dict[str, Any]]:
        return {**self.shared, **self.own}.items()

    def values(self) -> ValuesView[dict[str, Any]]:
        return {**self.shared, **self.own}.values()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return all(self._row(key) == other._row(key) for key in self.own.keys() | other.own.keys())

    __hash__ = None  # type: ignore[assignment]

    def _row(self, key: str) -> dict[str, Any] | None:
        return self.own[key] if key in self.own else self.shared.get(key)


@functools.cache
def _shared(domain: str) -> dict[str, dict[str, dict[str, Any]]]:
    contents: dict[str, dict[str, dict[str, Any]]] = exact_json.loads(
        _read(f"domains/{domain}/db.json.gz")
    )
    return contents


def _read(name: str) -> bytes:
    folder = metadata.distribution(PACKAGE.name).locate_file("inspect_evals/tau2/data")
    content = (Path(str(folder)) / name).read_bytes()
    return gzip.decompress(content) if name.endswith(".gz") else content
