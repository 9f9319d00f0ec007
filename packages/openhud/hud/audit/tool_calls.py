"""Tool calls that know nothing of a task: arguments from a schema, and solutions that are played again."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hud.agents.native.attach import attach
from hud.agents.types import AgentConfig
from hud.audit.turns import call_in_turns, notes_of
from hud.errors import NotFoundError
from hud.trace import ToolCall, ToolSpec

MOST_CALLS = 300
"""Calls of one run."""
REPEATS = 3
"""Equal calls of each tool, before those with other arguments."""
VARIANTS = 3
SHELL = ("command", "cmd", "script", "bash", "shell")
"""Names of parameters that a shell executes."""
_GRID = [(x / 6, y / 6) for y in range(1, 6) for x in range(1, 6)]


async def attach_all(run: Any) -> None:
    """Give the run every tool that its capabilities make possible, as a model gets them."""
    with contextlib.suppress(NotFoundError):
        await attach(run, AgentConfig().native_tools)


async def call_everything(run: Any, words: Sequence[str]) -> None:
    """Call every tool several times, first with what its schema alone gives, then with `words` of the prompt."""
    calls = []
    for spec, arguments, blind in itertools.islice(_planned(run.tools, words), MOST_CALLS):
        made = ToolCall(name=spec.name, arguments=arguments)
        calls.append(made)
        if blind:
            notes_of(run).blind.add(made.id)
    await call_in_turns(run, calls)


async def replay(run: Any, calls: Iterable[ToolCall]) -> None:
    """Make the calls of a solution, in order."""
    await call_in_turns(run, [ToolCall(name=made.name, arguments=made.arguments) for made in calls])


def altered(calls: Iterable[ToolCall]) -> list[ToolCall] | None:
    """Return the calls with every number in their arguments changed; None where there is none."""
    changed = [
        made.model_copy(update={"arguments": _other_numbers(made.arguments)}) for made in calls
    ]
    before = [made.arguments for made in calls]
    return None if [made.arguments for made in changed] == before else changed


def instance(schema: dict[str, Any], words: Sequence[str] = (), variant: int = 0) -> Any:
    """Return a value that a JSON schema allows; strings are `words`, in turn."""
    return _instance(schema, list(words), variant, schema.get("$defs") or {})


def string_parameters(spec: ToolSpec) -> list[str]:
    """Return the parameters of a tool that take text."""
    properties = spec.parameters.get("properties") or {}
    return [name for name, schema in properties.items() if "string" in _types(schema)]


def _planned(
    tools: Sequence[ToolSpec], words: Sequence[str]
) -> Iterator[tuple[ToolSpec, Any, bool]]:
    """Yield tool, arguments, and whether they come from the schema alone."""
    for spec in list(tools):
        if spec.native == "computer":
            continue
        for _ in range(1 if spec.delegated else REPEATS):
            yield spec, instance(spec.parameters), True
    for spec in list(tools):
        if spec.native == "computer":
            yield from ((spec, action, False) for action in _clicks(spec, words))
        elif spec.native is None and not spec.delegated:
            for variant in range(1, VARIANTS):
                yield spec, instance(spec.parameters, words, variant), False


def _clicks(spec: ToolSpec, words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Clicks over the whole screen, then typed words and Enter."""
    width, height = spec.options.get("width", 800), spec.options.get("height", 600)
    for x, y in _GRID:
        yield {"action": "click", "x": int(x * width), "y": int(y * height)}
    yield {"action": "type", "text": " ".join(words[:3]) or "x"}
    yield {"action": "key", "keys": ["Enter"]}


def _types(schema: Any) -> list[str]:
    if not isinstance(schema, dict):
        return []
    declared = schema.get("type")
    own = declared if isinstance(declared, list) else [declared] if declared else []
    return [*own, *(kind for part in schema.get("anyOf") or [] for kind in _types(part))]


def _instance(schema: Any, words: list[str], variant: int, defs: dict[str, Any]) -> Any:
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        schema = defs.get(str(schema["$ref"]).rpartition("/")[2]) or {}
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][variant % len(schema["enum"])]
    for joined in ("anyOf", "oneOf", "allOf"):
        if schema.get(joined):
            return _instance(schema[joined][0], words, variant, defs)
    kind = next(iter(_types(schema)), "object" if "properties" in schema else "string")
    if kind == "object":
        return _object(schema, words, variant, defs)
    if kind == "array":
        item = _instance(schema.get("items") or {}, words, variant, defs)
        return [item] * max(1, int(schema.get("minItems") or 1))
    if kind in ("integer", "number"):
        return int(schema.get("minimum") or 0) + variant
    if kind == "boolean":
        return variant % 2 == 0
    return None if kind == "null" else words[variant % len(words)] if words else "x"


def _object(
    schema: dict[str, Any], words: list[str], variant: int, defs: dict[str, Any]
) -> dict[str, Any]:
    """Required properties alone for an even variant, all of them for an odd one."""
    required = schema.get("required") or []
    return {
        # Words of a prompt are no commands to try.
        name: "true"
        if name in SHELL
        else _instance(part, words[place:] + words[:place], variant, defs)
        for place, (name, part) in enumerate((schema.get("properties") or {}).items())
        if name in required or variant % 2
    }


def _other_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _other_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_other_numbers(part) for part in value]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return f"{float(value) * 2 + 7:g}"
        return value
    return value * 2 + 7
