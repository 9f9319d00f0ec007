"""`Service`: one run's desk: the world that a task is about, the tools over it, and what was done and said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hud.environment.tools.tool import Tool
from hud.errors import UsageError
from hud_benchmarks.tau2.airline import Airline
from hud_benchmarks.tau2.data import records, tasks
from hud_benchmarks.tau2.retail import Retail
from hud_benchmarks.tau2.telecom.carrier import CarrierTools
from hud_benchmarks.tau2.telecom.phone import PhoneTools
from hud_benchmarks.tau2.telecom.world import Telecom

Desk = Airline | Retail | CarrierTools | PhoneTools
DESKS: dict[str, type[Airline] | type[Retail]] = {"airline": Airline, "retail": Retail}
"""Domains in which a customer is talked to."""


def _declared(desk: type[Desk]) -> dict[str, Tool]:
    """Return the tools of a kind of desk: its public methods."""
    blank = object.__new__(desk)
    names = [name for name in vars(desk) if not name.startswith("_")]
    return {name: Tool(getattr(blank, name), name=name) for name in names}


TOOLS: dict[type[Desk], dict[str, Tool]] = {
    desk: _declared(desk) for desk in (Airline, Retail, CarrierTools, PhoneTools)
}


MOST_NUMBERS = 1_000
"""Different numbers that a customer is told: whoever says all numbers says the right one, too."""
_NUMBER = re.compile(r"[0-9][0-9.]*")
_BEFORE, _AFTER = r"(?<![\w.])(?<![0-9][:/-])", r"(?!\w|[.:/-][0-9])"
"""Around a number that is no part of a word, a date or a time."""
_ALONE = re.compile(rf"{_BEFORE}([0-9]+)(\.[0-9]+)?{_AFTER}")
_ITEM = re.compile(r"(?m)^\s*[0-9]{1,2}[.)]\s")
"""Number of an item in a list."""
_MOST_ALIKE, _MOST_OTHERS = {1: 5, 2: 20}, 200
"""Different numbers like a wanted one that a customer is told: integers by their digits, and others. More are a guess."""
_COUNTED: dict[tuple[str, str], tuple[str, ...]] = {
    ("airline", "3"): ("suitcase", "bag", "luggage", "piece", "item"),
    **{
        ("retail", task): ("option", "variant", "shirt", "availab", "stock")
        for task in ("2", "3", "4")
    },
}
"""Beginnings of the words for what a customer asks the number of, by domain and task."""
_WORD = re.compile(r"[^\W\d_]+")
_UNIT_WORDS = 4
"""Words after a number among which its unit is."""
_MOST_COUNTS = 3
"""Different counts in the message that settles a question: two passengers with two bags each may bring four."""
_STEM = 4
"""Letters from which on a word counts with other endings: camera, cameras."""


class Service:
    """State of one run."""

    def __init__(self, domain: str, identifier: str) -> None:
        self.domain = domain
        self.task = tasks(domain)[identifier]
        self.telecom = Telecom(self.task) if domain == "telecom" else None
        self.desks: tuple[Desk, ...] = (
            (DESKS[domain](records(domain)),) if self.telecom is None else self.telecom.desks
        )
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.messages: list[str] = []
        """Messages to the customer."""

    @property
    def tools(self) -> dict[str, Tool]:
        """Tools of the desks, by name; they are declarations, and `call` executes them."""
        return {name: tool for desk in self.desks for name, tool in TOOLS[type(desk)].items()}

    @property
    def solution(self) -> list[dict[str, Any]]:
        """Actions of the package's solution: `name` and `arguments`."""
        actions: list[dict[str, Any]] = self.task["evaluation_criteria"]["actions"] or []
        return actions

    @property
    def to_be_said(self) -> list[str]:
        """Texts that the customer must be told."""
        texts: list[str] = self.task["evaluation_criteria"].get("communicate_info") or []
        return texts

    def call(self, name: str, arguments_sent: dict[str, Any]) -> Any:
        """Call a tool; raises `UsageError` for what cannot be done."""
        desk = next(candidate for candidate in self.desks if name in TOOLS[type(candidate)])
        arguments = TOOLS[type(desk)][name].arguments.validate(arguments_sent)
        self.calls.append((name, arguments_sent))
        result = getattr(desk, name)(**arguments)
        if self.telecom is not None:
            self.telecom.settle()
        return result

    def problem(self) -> str | None:
        """Return what keeps the task from being solved; None where it is."""
        transcript = "\n".join(self.messages).lower().replace(",", "")
        units = _COUNTED.get((self.domain, str(self.task["id"])))
        for text in self.to_be_said:
            if units is not None:
                if (miscounted := _miscounted(text, units, self.messages)) is not None:
                    return miscounted
                continue
            if not _is_told(text.lower(), transcript):
                return f"The customer was not told {text!r}."
            if (guesses := _guesses(text, transcript)) is not None:
                return f"The customer was told {guesses} numbers like {text!r}: they are a guess."
        if self.to_be_said and len(set(_NUMBER.findall(transcript))) > MOST_NUMBERS:
            return f"The customer was told more than {MOST_NUMBERS:,} numbers."
        if self.telecom is not None:
            return self._undone() or self.telecom.problem(self.task)
        expected = Service(self.domain, str(self.task["id"]))
        expected.solve()
        same = [_records(desk) for desk in self.desks] == [
            _records(desk) for desk in expected.desks
        ]
        return None if same else "The database is not as the solution leaves it."

    def solve(self) -> None:
        """Do what the package's solution does; a call that fails changes nothing, as in the package."""
        for action in self.solution:
            try:
                self.call(action["name"], action["arguments"])
            except UsageError:
                continue

    def _undone(self) -> str | None:
        """Return an action that the task demands by itself and that was not called."""
        if "ACTION" not in self.task["evaluation_criteria"]["reward_basis"]:
            return None
        for action in self.solution:
            if not any(_is(action, name, arguments) for name, arguments in self.calls):
                return f"{action['name']} was not called as the task demands."
        return None


def _is_told(text: str, transcript: str) -> bool:
    """Return True if a text is in the transcript as words of its own, a number with any zeros after its decimals."""
    ending = ""
    if text[-1].isdigit():
        ending = (r"(?:0*|\.0+)" if "." in text else r"(?:\.0+)?") + _AFTER
    elif len(text) < _STEM:
        ending = r"(?!\w)"
    return re.search(rf"{_BEFORE}{re.escape(text)}{ending}", transcript) is not None


def _guesses(text: str, transcript: str) -> int | None:
    """Return the count of different numbers in a transcript that are like a wanted one, if it is a guess; else None."""
    wanted = _ALONE.fullmatch(text)
    if wanted is None:
        return None
    digits, decimal = len(wanted[1]), wanted[2] is not None
    alike = {
        match[0]
        for match in _ALONE.finditer(_ITEM.sub("", transcript))
        if (len(match[1]), match[2] is not None) == (digits, decimal)
    }
    most = _MOST_OTHERS if decimal else _MOST_ALIKE.get(digits, _MOST_OTHERS)
    return len(alike) if len(alike) > most else None


def _miscounted(text: str, units: tuple[str, ...], messages: list[str]) -> str | None:
    """Return why a count is not told, or a guess; None where the last message with such counts has it among few.

    Numbers of other things than the units are no counts of them, and any number of them may be said.
    """
    counts = [numbers for message in messages if (numbers := _counts(message, len(text), units))]
    if not counts or text not in counts[-1]:
        return f"The customer was not told {text!r} in the end."
    if len(counts[-1]) > _MOST_COUNTS:
        return f"The customer was told {len(counts[-1])} numbers like {text!r}: they are a guess."
    return None


def _counts(message: str, digits: int, units: tuple[str, ...]) -> set[str]:
    """Return the integers of so many digits in a message that count one of the units.

    One stands before a unit, or before no word in a sentence that names a unit or a total, or has no words at all.
    """
    counts = set()
    for sentence in re.split(r"[.!?](?:\s|$)|\n", _ITEM.sub("", message.lower())):
        words = _WORD.findall(sentence)
        about_units = not words or any(word.startswith((*units, "total")) for word in words)
        for match in _ALONE.finditer(sentence):
            following = re.match(r"[^,;:()0-9]*", sentence[match.end() :])
            next_words = _WORD.findall(following[0]) if following else []
            is_bare = not next_words or next_words[0] in ("or", "and")
            counts_unit = any(word.startswith(units) for word in next_words[:_UNIT_WORDS])
            if len(match[0]) == digits and (counts_unit or (is_bare and about_units)):
                counts.add(match[0])
    return counts


def _records(desk: Desk) -> Any:
    return getattr(desk, "records", None)


def _is(action: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    compared = action.get("compare_args")
    names = action["arguments"] if compared is None else compared
    return name == action["name"] and all(
        arguments.get(argument) == action["arguments"][argument] for argument in names
    )
