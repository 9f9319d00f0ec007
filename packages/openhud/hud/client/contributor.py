"""`Contributor`: the client of a training session, sent in a request header.

A gradient belongs to the client that accumulated it. The header is optional: HUD's clients send none, and all requests of
an API key without it are one client.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from urllib.parse import quote, unquote

from hud.errors import UsageError
from hud.processes.presence import command_line, presence

HEADER = "Hud-Training-Client"
MOST_CHARACTERS = 1000
_ID = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True)
class Contributor:
    """A client that accumulates gradients."""

    id: str
    """Unique id; those of `hud.processes.presence` also allow checks whether the process runs."""
    process: str
    """Description for messages: process, machine and command."""
    key_holder: str = ""
    """Holder of the key of its requests, set by the platform."""

    @classmethod
    def here(cls) -> Contributor:
        """Return a new client of this process."""
        return cls(
            presence("trainer"),
            f"process {os.getpid()} on {socket.gethostname()} ({command_line()})",
        )

    @property
    def headers(self) -> dict[str, str]:
        """The request header."""
        return {HEADER: quote(f"{self.id} {self.process}", safe=" /()-.:,=+'")[:MOST_CHARACTERS]}


UNNAMED = Contributor("unnamed", "a client that gives no name")


def read_contributor(
    header: str | None, key_id: str | None = None, key_holder: str = ""
) -> Contributor:
    """Return the client of a header; without one, the shared client of the API key.

    Raises `UsageError` for a header that does not begin with an id.
    """
    if header is None:
        name = f"key:{key_id}" if key_id else UNNAMED.id
        return Contributor(name, UNNAMED.process, key_holder)
    identifier, _, process = header[:MOST_CHARACTERS].partition(" ")
    if _ID.fullmatch(identifier) is None:
        raise UsageError(
            f"The header {HEADER} must begin with an id of 1 to 200 printable ASCII characters; leave it out, or "
            "send one id for all requests of a client."
        )
    # It is printed in terminals: no control characters.
    shown = "".join(character for character in unquote(process) if character.isprintable())
    return Contributor(identifier, shown or f"client {identifier}", key_holder)
