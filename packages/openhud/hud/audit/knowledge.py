"""Knowledge of an attacker: correct answers of other tasks, and the source of the environment."""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.trace import ToolCall, ToolStep, Trace

if TYPE_CHECKING:
    from hud.environment import Environment, Task

LONGEST_WORD = 80
"""Longest string of a source that counts as a word of the grader, in characters."""
MOST_FILES = 40


@dataclass(frozen=True)
class Solution:
    """A run that did the work."""

    answer: str
    calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, trace: Trace) -> Solution:
        """Return the solution that the trace of a run shows."""
        calls = [
            step.call
            for step in trace.steps
            if isinstance(step, ToolStep) and step.call is not None
        ]
        return cls(trace.content or "", tuple(calls))


@dataclass
class Knowledge:
    """Solutions by slug, and what the sources of the environments hold."""

    tasks: Mapping[str, Task]
    solutions: dict[str, Solution] = field(default_factory=dict)
    _words: dict[str, list[str]] = field(default_factory=dict)

    def others(self, slug: str) -> list[Solution]:
        """Return the solutions of the other tasks of a task's template."""
        own = self.tasks[slug]
        return [
            solution
            for other, solution in self.solutions.items()
            if other != slug and (self.tasks[other].env, self.tasks[other].id) == (own.env, own.id)
        ]

    def answers(self, slug: str) -> list[str]:
        """Return the correct answers of a task's template, its own among them, sorted."""
        own = {self.solutions[slug].answer} if slug in self.solutions else set()
        return sorted({solution.answer for solution in self.others(slug)} | own)

    def guess(self, slug: str) -> str | None:
        """Return the most frequent correct answer of the other tasks of the template; None where none is known."""
        counted = Counter(solution.answer for solution in self.others(slug) if solution.answer)
        return counted.most_common(1)[0][0] if counted else None

    def mistaken(self, slug: str) -> Solution | None:
        """Return a solution of another task that is none of this one; None where there is none.

        Its answer differs or, where all answers of the template are equal, its calls do.
        """
        own, others = self.solutions.get(slug), self.others(slug)
        if own is None:
            return others[0] if others else None
        same = all(other.answer == own.answer for other in others)
        return next((other for other in others if _differ(other, own, by_calls=same)), None)

    def words(self, slug: str) -> list[str]:
        """Return the strings in the source of a task's environment, in order; empty for a task without one."""
        environment = self.tasks[slug].environment
        if environment is None:
            return []
        if environment.name not in self._words:
            strings = dict.fromkeys(
                word for file in source_files(environment) for word in _strings(file)
            )
            self._words[environment.name] = list(strings)
        return self._words[environment.name]


def source_files(environment: Environment | None) -> tuple[Path, ...]:
    """Return the file that an environment was made in, then the loaded modules of its folder."""
    file = None if environment is None else environment.source_file
    return () if file is None or not Path(file).is_file() else _beside(Path(file).resolve())


@functools.lru_cache(maxsize=64)
def _beside(first: Path) -> tuple[Path, ...]:
    loaded = {
        Path(file)
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None)) and file.endswith(".py")
    }
    same = {file for file in loaded if file.parent.name == first.parent.name}
    others = sorted(file.resolve() for file in same if file.resolve() != first)
    return (first, *(file for file in others if file.parent == first.parent))[:MOST_FILES]


def hidden_arguments(task: Task, prompt: str) -> list[str]:
    """Return the texts among a task's arguments that its prompt does not show.

    Single words and texts of less than six characters are left out: they stand in many places by chance.
    """
    return [
        text
        for text in _texts(task.args)
        if len(text) >= 6 and not text.isalpha() and text not in prompt
    ]


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _differ(first: Solution, second: Solution, *, by_calls: bool) -> bool:
    calls = [
        [(call.name, call.arguments_text) for call in solution.calls]
        for solution in (first, second)
    ]
    return calls[0] != calls[1] if by_calls else first.answer != second.answer


def _strings(file: Path) -> list[str]:
    """Return the short strings of a Python file that are no docstrings."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in spoken
        and 0 < len(node.value.strip()) <= LONGEST_WORD
    ]
