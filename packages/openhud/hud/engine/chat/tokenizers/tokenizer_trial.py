"""Trial of a new model's tokenizer in a process with limits: texts made of its own patterns, which only a bad pattern encodes slowly.

It refuses a useless file when it is added. A file that passes may still be slow on other texts (`prompt_process.py`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations

from hud.engine.chat.tokenizers.limits import MEMORY, limit_process, limit_time, parsed

CPU_SECONDS = 10
"""Processor time of a trial; published tokenizers need about 1 s."""
WALL_SECONDS = 300.0
RUN_LENGTH = 1 << 16
"""Characters of a probe that repeats one character: quadratic time on it exceeds the limit."""
PAIR_LENGTH = 1 << 12
_CLASSES = "aAé中1 \n\t!_'-\u0301😀"
"""A member of each class of characters that published patterns distinguish."""
_MOST_LITERALS = 24
_OVER = 3
_DAMAGED = 4
"""Exit statuses of a trial: a text cannot be encoded, the file cannot be loaded."""


def trial_problem(text: str, patterns: list[str]) -> str | None:
    """Return the reason against a tokenizer.json with these regular expressions, as a predicate; None: it passed."""
    slow = f"takes more than {CPU_SECONDS} s, or {MEMORY >> 30} GiB, to encode texts made of its own patterns"
    command = [sys.executable, "-m", __name__]
    # Not as arguments, whose length the kernel bounds.
    sent = f"{json.dumps(patterns)}\n{text}".encode()
    try:
        trial = subprocess.run(
            command, input=sent, capture_output=True, timeout=WALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return slow
    if trial.returncode == 0:
        return None
    if trial.returncode == _DAMAGED:
        return f"is damaged ({trial.stdout.decode().strip()})"
    if trial.returncode == _OVER:
        return f"cannot encode a text made of its own patterns ({trial.stdout.decode().strip()})"
    return slow


def probes(patterns: list[str]) -> Iterator[str]:
    """Yield the texts of a trial: runs of characters, pairs and words of the patterns, alone and before another character."""
    literals = sorted({letter for pattern in patterns for letter in pattern if letter.isalnum()})
    letters = list(dict.fromkeys([*_CLASSES, *literals[:_MOST_LITERALS]]))
    words = sorted({word for pattern in patterns for word in re.findall(r"\w{2,}", pattern)})
    pairs = ["".join(pair) for pair in combinations(letters, 2)]
    # Short ones first: exponential time shows on them.
    for length in (32, PAIR_LENGTH):
        for unit in (*letters, *words[:_MOST_LITERALS], *pairs):
            yield unit * (length // len(unit))
            yield unit * (length // len(unit)) + "\0"
    for letter in letters:
        yield letter * RUN_LENGTH
        yield letter * RUN_LENGTH + "\0"


def main() -> int:
    """Encode and decode the probes of the patterns in the first line of the standard input, with the tokenizer.json in its rest,
    within the limits.
    """
    patterns: list[str] = json.loads(sys.stdin.buffer.readline())
    limit_process()
    limit_time(CPU_SECONDS)
    try:
        tokenizer = parsed(sys.stdin.buffer.read().decode())
    except ValueError as error:
        sys.stdout.write(str(error))
        return _DAMAGED
    for probe in probes(patterns):
        try:
            tokenizer.decode(tokenizer.encode(probe, add_special_tokens=False).ids)
        except BaseException as error:  # A panic of tokenizers is no Exception.
            sys.stdout.write(str(error))
            return _OVER
    return 0


if __name__ == "__main__":
    sys.exit(main())
