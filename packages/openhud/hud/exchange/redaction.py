"""Redaction: private texts of imported runs, replaced before anything is stored.

A rule is `keys`, `mail`, or a regular expression of the user's. A run in which something was replaced loses its token ids: they would
hold the text still.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud.exchange.foreign_runs import ForeignRun
from hud.trace.recording.journal import encode_step
from hud.trace.steps import Step

KEYS, MAIL = "keys", "mail"
# Each begins only where no earlier match could: a text of any length takes time in proportion to it.
_KINDS = {
    KEYS: (
        r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"  # Of providers of models and of payments.
        r"|\b(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{16,}"
        r"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bglpat-[\w-]{20,}"
        r"|\bA(?:KIA|SIA)[A-Z0-9]{16}\b|\bAIza[\w-]{35}|\bxox[abeoprs]-[\w-]{10,}|\bhf_[A-Za-z0-9]{30,}"
        r"|(?<![\w-])(?=[\w-]+\.eyJ[\w-]{10,}\.[\w-]{10})[\w-]*?\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
        r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
        r"|(?i:(?<=bearer )[\w.~+/-]{16,}=*)"
    ),
    MAIL: r"(?<![\w.+-])[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}\b",
}
_FIELDS = ("slug", "task", "error", "content", "grade", "extra")
"""Fields of a run that are redacted, besides its steps."""
LONGEST_PATTERN = 500
MOST_RULES = 100


class Redaction:
    """Rules, applied to plain data."""

    def __init__(self, rules: Sequence[str]) -> None:
        """Raises `UsageError` for a rule that is no regular expression, or too long, and for too many."""
        if len(rules) > MOST_RULES:
            raise UsageError(f"There are at most {MOST_RULES} redaction rules of a source.")
        self._patterns: list[tuple[str, re.Pattern[str]]] = []
        for rule in rules:
            if len(rule) > LONGEST_PATTERN:
                raise UsageError(f"A redaction rule has at most {LONGEST_PATTERN} characters.")
            try:
                self._patterns.append(
                    (rule if rule in _KINDS else "text", re.compile(_KINDS.get(rule, rule)))
                )
            except re.error as error:
                raise UsageError(f"The rule {rule!r} is no regular expression: {error}.") from error
        self.replaced = 0
        """Number of replaced texts."""

    def apply(self, value: Any) -> Any:
        """Return plain data with private texts replaced by the names of their rules; pictures (`data`) stay."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self.apply(element) for element in value]
        if isinstance(value, Mapping):
            return {
                self._text(str(name)): inner if _is_picture(name, value) else self.apply(inner)
                for name, inner in value.items()
            }
        return value

    def run(self, run: ForeignRun) -> ForeignRun:
        """Return a run without private texts; without its token ids, if it had some."""
        if not self._patterns:
            return run
        before = self.replaced
        steps = [self._step(step) for step in run.steps]
        fields = {name: self.apply(getattr(run, name)) for name in _FIELDS}
        if self.replaced == before:
            return run
        return replace(run, steps=steps, **fields)

    def _step(self, step: Step | Mapping[str, Any]) -> Mapping[str, Any]:
        payload = exact_json.loads(encode_step(step)) if isinstance(step, Step) else dict(step)
        payload.pop("sample", None)
        redacted: Mapping[str, Any] = self.apply(payload)
        return redacted

    def _text(self, text: str) -> str:
        for name, pattern in self._patterns:
            text, count = pattern.subn(f"[{name}]", text)
            self.replaced += count
        return text


def _is_picture(name: object, holder: Mapping[str, Any]) -> bool:
    return name == "data" and ("mimeType" in holder or "mime_type" in holder)
