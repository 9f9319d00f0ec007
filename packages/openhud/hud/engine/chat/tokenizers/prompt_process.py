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
from threading import Event, Lock, Timer
from typing import IO, Any

from hud.engine.chat.prompt_tokens import PromptTokenizer
from hud.engine.chat.template_text import TemplateText
from hud.engine.chat.tokenizers.limits import MEMORY, limit_process, limit_time, parsed
from hud.errors import UsageError

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
        self._process: subprocess.Popen[str] | None = None
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
        assert process.stdin is not None
        assert process.stdout is not None
        expired = Event()
        end = Timer(WALL_FACTOR * _seconds(text), _expire, (process, expired))
        end.daemon = True
        end.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                _write(process.stdin, {"text": text, "own": own})
            line = process.stdout.readline()
        finally:
            end.cancel()
        if line.endswith("\n"):
            reply: dict[str, Any] = json.loads(line)
            return reply
        self._process = None
        _end(process)
        if process.returncode == -signal.SIGKILL and not expired.is_set():
            raise UsageError(
                "The process of the model's tokenizer was killed. Send the request again."
            )
        slow = process.returncode == -signal.SIGXCPU or expired.is_set()
        limit = f"{_seconds(text)} s" if slow else f"{MEMORY >> 30} GiB"
        self._refusal = (
            f"The model's tokenizer needed more than {limit} to encode a text of {len(text):,} characters, and is not used "
            "again. Use a model with another tokenizer."
        )
        raise UsageError(self._refusal)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            # A session of its own: Ctrl-C is for the parent, whose end closes the standard input.
            process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="ascii",
                start_new_session=True,
            )
            assert process.stdin is not None
            self._process, self._owner = process, os.getpid()
            weakref.finalize(self, _end_of_owner, process, self._owner)
            with contextlib.suppress(BrokenPipeError):
                _write(process.stdin, self._described)
        return self._process


def _seconds(text: str) -> int:
    """Return the processor time for a text, in seconds."""
    return ENCODE_SECONDS + len(text) // CHARACTERS_A_SECOND


def _expire(process: subprocess.Popen[str], expired: Event) -> None:
    expired.set()
    process.kill()


def _write(stream: IO[str], value: dict[str, Any]) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


def _end_of_owner(process: subprocess.Popen[str], owner: int) -> None:
    if owner == os.getpid():
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with contextlib.suppress(OSError):
            stream.close()
    process.wait()


def main() -> None:
    """Encode the texts of the standard input, a line each, with the tokenizer of its first line."""
    limit_process()
    limit_time(_seconds(""))
    described = json.loads(sys.stdin.readline())
    tokenizer = parsed(described["tokenizer"])
    prompts = PromptTokenizer(tokenizer, described["template"], described["growth"])
    while line := sys.stdin.readline():
        request = json.loads(line)
        limit_time(_seconds(request["text"]))
        _write(sys.stdout, _answer(prompts, request["text"], request["own"]))


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
