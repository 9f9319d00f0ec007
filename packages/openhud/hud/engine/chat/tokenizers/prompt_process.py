"""Prompt encoding in a process with limits: a tokenizer of unknown cost can neither hold a thread for long nor fill the memory.

Oniguruma, which matches the regular expressions of a tokenizer.json, backtracks in native code that nothing interrupts. The
process is started at the first prompt, limits its own processor time for each text, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from hud.engine.chat.prompt_tokens import PromptTokenizer
from hud.engine.chat.template_text import TemplateText
from hud.engine.chat.tokenizers.limits import MEMORY, limit_process, limit_time, parsed
from hud.errors import UsageError
from hud.processes.connected_child import ChildEnded, ConnectedChild, connection_to_parent

ENCODE_SECONDS = 10
"""Processor time for a text, in seconds; `CHARACTERS_A_SECOND` add to it."""
CHARACTERS_A_SECOND = 500_000
"""Published tokenizers encode a few million characters a second."""
WALL_FACTOR = 10
"""Wall time for a text in units of its processor time, for busy machines."""
MOST_IDS = 1 << 22
"""Longest prompt in tokens."""


class PromptProcess:
    """The prompts of one tokenizer.json, encoded by a process; the methods of `PromptTokenizer`.

    A text that exceeds the limits ends the process, and the tokenizer is refused from then on.
    """

    def __init__(self, tokenizer: str, template: str, growth: float) -> None:
        """`tokenizer` is the text of a tokenizer.json; the others are as for `PromptTokenizer`."""
        self.threads = ThreadPoolExecutor(1, "tokenizer")
        """Thread for callers on an event loop: texts that wait for this tokenizer take no thread of others."""
        self._described = {"tokenizer": tokenizer, "template": template, "growth": growth}
        self._lock = Lock()
        self._process: ConnectedChild | None = None
        self._owner = 0
        """Process that started `_process`: a fork starts its own."""
        self._refusal: str | None = None

    def raw(self, text: str) -> list[int]:
        """Return the ids of trusted text, including control tokens. Raises `UsageError` at the limits."""
        return self._ids(text, None)

    def encode(self, text: TemplateText) -> list[int]:
        """Return the ids of a prompt. Raises `UsageError` for one that cannot be encoded, or not within the limits."""
        return self._ids(str.__str__(text), text.own)

    def _ids(self, text: str, own: tuple[tuple[int, int], ...] | None) -> list[int]:
        with self._lock:
            if self._refusal is not None:
                raise UsageError(self._refusal)
            reply = self._reply(text, own)
        if "ids" not in reply:
            raise UsageError(reply["problem"])
        ids: list[int] = reply["ids"]
        return ids

    def _reply(self, text: str, own: tuple[tuple[int, int], ...] | None) -> dict[str, Any]:
        process = self._running()
        try:
            with process.exchange(WALL_FACTOR * _seconds(text)) as connection:
                connection.send_bytes(_packed({"text": text, "own": own}))
                reply: dict[str, Any] = json.loads(connection.recv_bytes())
                return reply
        except ChildEnded as ended:
            self._process = None
            if ended.status == -signal.SIGKILL and not ended.late:
                raise UsageError(
                    "The process of the model's tokenizer was killed. Send the request again."
                ) from None
            slow = ended.late or ended.status == -signal.SIGXCPU
        limit = f"{_seconds(text)} s" if slow else f"{MEMORY >> 30} GiB"
        self._refusal = (
            f"The model's tokenizer needed more than {limit} to encode a text of {len(text):,} characters, and is not used "
            "again. Use a model with another tokenizer."
        )
        raise UsageError(self._refusal)

    def _running(self) -> ConnectedChild:
        if self._process is None or self._owner != os.getpid() or self._process.status is not None:
            command = [sys.executable, "-m", __name__]
            process = ConnectedChild(command, stderr=subprocess.DEVNULL)
            self._process, self._owner = process, os.getpid()
            weakref.finalize(self, _end_of_owner, process, self._owner)
            with contextlib.suppress(BrokenPipeError):
                process.connection.send_bytes(_packed(self._described))
        return self._process


def _seconds(text: str) -> int:
    """Return the processor time for a text, in seconds."""
    return ENCODE_SECONDS + len(text) // CHARACTERS_A_SECOND


def _packed(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii")  # A text may have lone surrogates.


def _end_of_owner(process: ConnectedChild, owner: int) -> None:
    if owner == os.getpid():
        process.reap()


def main() -> None:
    """Encode the texts of the parent, a message each, with the tokenizer of its first."""
    parent = connection_to_parent()
    limit_process()
    limit_time(_seconds(""))
    with contextlib.suppress(EOFError):
        described = json.loads(parent.recv_bytes())
        tokenizer = parsed(described["tokenizer"])
        prompts = PromptTokenizer(tokenizer, described["template"], described["growth"])
        while True:
            request = json.loads(parent.recv_bytes())
            limit_time(_seconds(request["text"]))
            parent.send_bytes(_packed(_answer(prompts, request["text"], request["own"])))


def _answer(
    prompts: PromptTokenizer, text: str, own: list[tuple[int, int]] | None
) -> dict[str, Any]:
    try:
        if own is None:
            ids = prompts.raw(text)
        else:
            ids = prompts.encode(TemplateText(text, tuple((start, end) for start, end in own)))
    except UsageError as error:
        return {"problem": str(error)}
    if len(ids) > MOST_IDS:
        return {
            "problem": f"The prompt has {len(ids):,} tokens; {MOST_IDS:,} are the most. Shorten it."
        }
    return {"ids": ids}


if __name__ == "__main__":
    main()
