"""The package's data: dialogues, their solutions, and the functions of its APIs."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI

from hud.trace import ToolSpec

DATA = resources.files("bfcl_eval") / "data"


@dataclass(frozen=True)
class Dialogue:
    """One task of the package."""

    entry: dict[str, Any]
    """Row of the package's data, as its checker takes it."""
    turns: tuple[str, ...]
    """The user's messages."""
    solution: list[list[str]]
    """Calls of each turn, as Python source."""
    functions: dict[str, int]
    """Functions that are offered, and the turn from which on."""

    @property
    def id(self) -> str:
        return str(self.entry["id"])

    @property
    def apis(self) -> list[str]:
        """Classes of the package's APIs."""
        classes: list[str] = self.entry["involved_classes"]
        return classes


def dialogue(entry: str) -> Dialogue:
    """Return a dialogue by its id, such as `multi_turn_base_0`."""
    rows, solutions = _category(entry.rpartition("_")[0])
    row = rows[entry]
    late = {
        name: int(turn) for turn, names in row.get("missed_function", {}).items() for name in names
    }
    offered = {
        name: late.get(name, 0) for api in row["involved_classes"] for name in functions(api)
    }
    # A turn without a message is the one in which the functions arrive that were missing so far.
    turns = (
        "\n".join(message["content"] for message in turn)
        or DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
        for turn in row["question"]
    )
    return Dialogue(row, tuple(turns), solutions[entry]["ground_truth"], offered)


@functools.cache
def functions(api: str) -> dict[str, ToolSpec]:
    """Return the functions of an API as tools."""
    rows = _rows(f"multi_turn_func_doc/{MULTI_TURN_FUNC_DOC_FILE_MAPPING[api]}")
    return {
        row["name"]: ToolSpec(
            name=row["name"], description=row["description"], parameters=_schema(row["parameters"])
        )
        for row in rows
    }


@functools.cache
def _category(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rows and the solutions of a category, by id."""
    file = f"BFCL_v4_{name}.json"
    rows, solutions = _rows(file), _rows(f"possible_answer/{file}")
    return {row["id"]: row for row in rows}, {row["id"]: row for row in solutions}


def _rows(file: str) -> list[dict[str, Any]]:
    text = DATA.joinpath(file).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _schema(value: Any) -> Any:
    """Return a description of parameters as JSON schema: the package writes `dict`, `float` and the like."""
    if isinstance(value, list):
        return [_schema(part) for part in value]
    if not isinstance(value, dict):
        return value
    schema = {key: _schema(part) for key, part in value.items()}
    if isinstance(schema.get("type"), str):
        schema["type"] = GORILLA_TO_OPENAPI[schema["type"]]
    return schema
