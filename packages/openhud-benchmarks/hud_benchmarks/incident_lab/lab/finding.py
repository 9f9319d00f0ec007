"""The finding that an incident comes down to, and its form in an answer.

An answer is one JSON object `{"service": ..., "cause": ..., "culprit": ...}`: one service, one cause, one culprit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

CAUSES = {
    "pool_exhaustion": "requests of one route keep all database connections of a service; the culprit is that "
    'route, as "GET /path"',
    "dropped_index": "a migration dropped an index that a service needs; the culprit is the index",
    "bad_deploy": "a new release of a service has a bug; the culprit is the release, as 1.2.3",
    "expired_certificate": "a service serves an expired certificate; the culprit is its serial number",
    "memory_leak": "something that a service remembers grows until it is killed; the culprit is the name of "
    "that memo",
    "wrong_flag": "a feature flag was turned on for which a service is not ready; the culprit is the flag",
    "dead_dependency": "a container is gone that others depend on; the culprit is the container (the service "
    "is the dead one)",
    "poisoned_message": "a message in a queue kills the service that takes it; the culprit is the message's id",
}
"""The causes, each with what its culprit is."""

SERVICE, CAUSE, CULPRIT = 0.1, 0.2, 0.7
"""Rewards of the parts of a finding. Nothing counts without the right service, and the culprit, which cannot
be guessed, counts most."""
LONGEST_ANSWER = 4000
_OBJECT = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True)
class Finding:
    """The service at fault, the cause, and the one thing to point at."""

    service: str
    cause: str
    culprit: str

    def text(self) -> str:
        """Return it as an answer."""
        return json.dumps({"service": self.service, "cause": self.cause, "culprit": self.culprit})


def parse_finding(answer: str) -> Finding | None:
    """Return the one finding of an answer; None where there is none, or more than one."""
    fields = parse_object(answer, ("service", "cause", "culprit"))
    return None if fields is None else Finding(**fields)


def parse_object(answer: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Return the one JSON object of an answer if it has these texts and nothing else.

    Whoever names several things has found nothing. Words around the object do not matter.
    """
    objects = _OBJECT.findall(answer)
    if len(answer) > LONGEST_ANSWER or len(objects) != 1 or answer.count("{") != 1:
        return None
    try:
        fields: dict[str, str] = json.loads(objects[0], object_pairs_hook=_unique)
    except ValueError:
        return None
    if set(fields) != set(names) or not all(isinstance(fields[name], str) for name in names):
        return None
    return {name: fields[name].strip() for name in names}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
