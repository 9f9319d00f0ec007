"""Limits of processes that encode with a stranger's tokenizer, and the loading of its file."""

from __future__ import annotations

import time
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_CORE, RLIMIT_CPU, setrlimit

from tokenizers import Tokenizer

MEMORY = 4 << 30
"""Address space of a process, in bytes."""


def parsed(text: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, which encodes a text as it is. Raises `ValueError` for a damaged one."""
    try:
        tokenizer = Tokenizer.from_str(text)
    except BaseException as error:  # tokenizers raises bare Exception; its panics are none.
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ValueError(str(error)) from error
    # A post-processor may repeat a text any number of times; truncation and padding change it.
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def limit_process() -> None:
    """Bound the memory of this process, and let it leave no core file."""
    setrlimit(RLIMIT_CORE, (0, 0))
    setrlimit(RLIMIT_AS, (MEMORY, MEMORY))


def limit_time(seconds: int) -> None:
    """Let the kernel end this process after more of its processor time."""
    setrlimit(RLIMIT_CPU, (int(time.process_time()) + seconds + 1, RLIM_INFINITY))
