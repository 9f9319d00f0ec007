"""Identity of a task: environment, template and arguments, whatever its slug and the form of its arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hud import exact_json
from hud.trace.json_values import plain_value

_Names = frozenset[str]
_Values = Mapping[str, str]
"""Arguments as JSON, by name."""


@dataclass(frozen=True)
class TaskIdentity:
    """Identity of a task. `same` compares two of them, `TaskIndex` many."""

    template: tuple[str, str]
    """Environment and id of the template."""
    forms: tuple[_Values, ...]
    """Equal arguments: as given, and for known defaults without them and with all of them."""
    has_defaults: bool
    """True if the defaults of the template are known."""

    @classmethod
    def of(
        cls,
        environment: str,
        template: str,
        args: Mapping[str, Any] | None,
        equal_args: Iterable[Mapping[str, Any]] | None = None,
    ) -> TaskIdentity:
        """Return the identity of a task. `equal_args`: other forms of `args`; None for unknown defaults."""
        plain = [plain_value(form) for form in (args or {}, *(equal_args or ()))]
        texts = tuple({name: _text(value) for name, value in form.items()} for form in plain)
        return cls((environment, template), texts, equal_args is not None)

    @classmethod
    def recorded(cls, task: Mapping[str, Any]) -> TaskIdentity:
        """Return the identity of a recorded task."""
        forms = equal_args_of(task) if isinstance(task.get("equal_args"), list) else None
        return cls.of(task.get("env") or "", task.get("id") or "", task.get("args"), forms)

    @property
    def short(self) -> _Values:
        """The form with the fewest arguments."""
        return min(self.forms, key=len)

    @property
    def complete(self) -> _Values:
        """The form with the most arguments."""
        return max(self.forms, key=len)

    @property
    def key(self) -> tuple[tuple[str, str], frozenset[tuple[str, str]]]:
        """Value that recorded runs of one task share."""
        return self.template, frozenset(self.complete.items())

    def same(self, other: TaskIdentity) -> bool:
        """True if both are, or may be, one task: see `TaskIndex`."""
        return other in TaskIndex([self])


class TaskIndex:
    """A set of tasks: a task is in it if environment, template and a form of its arguments are those of a member.

    Where the defaults of a task are unknown, an argument that it leaves out may have the value of another task: the two are
    the same unless an argument differs that both name, or the other one's defaults are known to be others.
    """

    def __init__(self, tasks: Iterable[TaskIdentity]) -> None:
        self._exact: set[tuple[tuple[str, str], frozenset[tuple[str, str]]]] = set()
        self._groups: dict[tuple[str, str], dict[_Kind, list[TaskIdentity]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._projected: dict[Any, set[frozenset[tuple[str, str]]]] = {}
        for task in tasks:
            self._exact.update((task.template, frozenset(form.items())) for form in task.forms)
            self._groups[task.template][_Kind.of(task)].append(task)

    def __contains__(self, task: TaskIdentity) -> bool:
        """Return whether a member is, or may be, this task."""
        if any((task.template, frozenset(form.items())) in self._exact for form in task.forms):
            return True
        kind = _Kind.of(task)
        for other, members in self._groups.get(task.template, {}).items():
            shared = kind.compared(other)
            if shared is None:
                continue
            place = task.template, other, shared
            if place not in self._projected:
                self._projected[place] = {
                    part for member in members for part in _parts(member, shared)
                }
            if not self._projected[place].isdisjoint(_parts(task, shared)):
                return True
        return False


@dataclass(frozen=True)
class _Kind:
    """Names of the arguments of a task's shortest and of its complete form."""

    has_defaults: bool
    least: _Names
    most: _Names

    @classmethod
    def of(cls, task: TaskIdentity) -> _Kind:
        return cls(task.has_defaults, frozenset(task.short), frozenset(task.complete))

    def compared(self, other: _Kind) -> _Names | None:
        """Return the arguments that decide whether tasks of two kinds are one; None if they cannot be, or have equal forms."""
        if self.has_defaults and other.has_defaults:
            return None
        if not self.has_defaults and not other.has_defaults:
            return self.least & other.least
        row, task = (other, self) if self.has_defaults else (self, other)
        return row.least if task.least <= row.least <= task.most else None


def equal_args_of(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return other forms of a recorded task's arguments."""
    forms = task.get("equal_args")
    return [form for form in forms if isinstance(form, dict)] if isinstance(forms, list) else []


def _parts(task: TaskIdentity, names: _Names) -> Iterator[frozenset[tuple[str, str]]]:
    """Yield the forms of these arguments: values as they are given, and as the template validates them."""
    for values in ({**task.complete, **task.short}, task.complete):
        yield frozenset((name, values[name]) for name in names)


def _text(value: Any) -> str:
    return exact_json.dumps(value, option=exact_json.OPT_SORT_KEYS).decode()
