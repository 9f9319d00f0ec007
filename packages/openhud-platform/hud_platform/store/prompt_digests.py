"""Digests of prompts: 64 bits of a text's lines, and of its sentences, equal for texts that differ in case, spaces or marks around
them.

A trained text has digests of its messages and of parts of them, so that a question is found under other words around it.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations, islice

MOST_DIGESTS = 512
"""Most digests of one training sequence; its whole messages come first."""
_SHORT = 12
"""Lines of a message, all of whose ranges have digests."""
_TRIMMED = 4
"""Lines that a longer message may have around a question, at either end."""
_LAST = 40
"""Last lines of a longer message, each with those after it."""
_QUESTION = 24
"""Fewest characters of a part of a prompt that is compared alone, and its fewest words."""
_WORDS = 4
_SENTENCE_END = re.compile(
    r"""(?<=[.?!:;])\s+|\\[nt]|["“”«»]|</?\w{1,12}>|(?:^|\n)\s*(?:[0-9]{1,3}[.)]|[-*>#•]+)\s"""
)
_QUOTES = str.maketrans("‘’‚´", "''''")
_SPEAKER = re.compile(r"^(?:system|user|human|question|q|assistant|model|answer|a)\s*:\s*")
_UNSEEN = {"Cc", "Cf"}

Lines = tuple[str, ...]


def lines_of(text: str) -> Lines:
    """Return the lines of a text in the form that is compared, without empty ones."""
    return tuple(line for line in map(_line, text.splitlines()) if line)


def sentences_of(text: str) -> Lines:
    """Return the sentences of a text, across lines, as `lines_of`."""
    return tuple(line for line in map(_line, _SENTENCE_END.split(text)) if line)


_SPLITS: tuple[Callable[[str], Lines], ...] = (lines_of, sentences_of)


def trained_digests(messages: Iterable[str]) -> set[int]:
    """Return at most `MOST_DIGESTS` digests of the messages of a training sequence."""
    of_messages = [_message_digests(text) for text in messages]
    messages_first = (digest for digests, _ in of_messages for digest in digests)
    parts = (digest for _, ranges in of_messages for digest in ranges)
    return set(islice(chain(messages_first, parts), MOST_DIGESTS))


@lru_cache(maxsize=256)
def _message_digests(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the digests of a message as a whole, and those of its parts. The sequences of a group share prompts."""
    splits = [lines for lines in (split(text) for split in _SPLITS) if lines]
    ranges = islice(chain.from_iterable(map(_ranges, splits)), MOST_DIGESTS)
    return tuple(map(_digest, splits)), tuple(dict.fromkeys(map(_digest, ranges)))


def question_digests(
    prompts: Mapping[str, Sequence[Sequence[str]]], templates: Mapping[str, str]
) -> dict[int, set[str]]:
    """Return the tasks by the digests of their questions.

    `prompts`: the messages of each prompt of a task, by slug; `templates`: the template of each task. A question is the last
    message that the tasks of a template do not share, and its lines between those that they all begin and end with.
    """
    digests: dict[int, set[str]] = {}
    by_template: dict[tuple[int, str], dict[str, set[tuple[Lines, ...]]]] = {}
    for number, split in enumerate(_SPLITS):
        for slug, of_task in prompts.items():
            tasks = by_template.setdefault((number, templates.get(slug, "")), {})
            tasks[slug] = {tuple(map(split, messages)) for messages in of_task}
    for tasks in by_template.values():
        every = [set(prompt) for of_task in tasks.values() for prompt in of_task]
        shared = set.intersection(*every) if len(tasks) > 1 else set()
        questions = {
            slug: {lines for prompt in of_task if (lines := _last(prompt, shared))}
            for slug, of_task in tasks.items()
        }
        first, last = _around(
            {lines for of_questions in questions.values() for lines in of_questions}
        )
        for slug, of_questions in questions.items():
            for lines in of_questions:
                inner = lines[first : len(lines) - last]
                text = " ".join(inner)
                compared = {lines}
                if len(text) >= _QUESTION and len(text.split()) >= _WORDS:
                    compared.add(inner)
                for part in compared:
                    digests.setdefault(_digest(part), set()).add(slug)
    return digests


def _last(prompt: tuple[Lines, ...], shared: set[Lines]) -> Lines:
    """Return the last message of a prompt that not every task has; its last one if there is none."""
    own = [lines for lines in prompt if lines and lines not in shared]
    return (own or [*prompt] or [()])[-1]


def _around(questions: set[Lines]) -> tuple[int, int]:
    """Return the numbers of lines with which all of these begin, and end."""
    if len(questions) < 2:
        return 0, 0
    first = _common(questions)
    last = _common({lines[first:][::-1] for lines in questions})
    return first, last


def _common(questions: set[Lines]) -> int:
    columns = zip(*questions, strict=False)
    return next((place for place, lines in enumerate(columns) if len(set(lines)) > 1), 0)


def _ranges(lines: Lines) -> Iterator[Lines]:
    """Yield the ranges of a message's lines that have digests, without the whole."""
    count = len(lines)
    if count <= _SHORT:
        for start, end in combinations(range(count + 1), 2):
            yield lines[start:end]
        return
    for start in range(_TRIMMED + 1):
        for end in range(count - _TRIMMED, count + 1):
            yield lines[start:end]
    for start in range(count - _LAST if count > _LAST else 0, count):
        yield lines[start:]
    for line in lines:
        if len(line) >= _QUESTION:
            yield (line,)


def _line(text: str) -> str:
    """Return a line without what may differ between two copies of it."""
    seen = text
    if not (text.isascii() and text.isprintable()):
        seen = "".join(
            " " if character.isspace() else character
            for character in unicodedata.normalize("NFKC", text)
            if character.isspace() or unicodedata.category(character) not in _UNSEEN
        )
    line = " ".join(seen.translate(_QUOTES).casefold().split())
    return _SPEAKER.sub("", line).strip("*_\"'` ").rstrip(".?!:… ")


def _digest(lines: Lines) -> int:
    """Return the signed 64-bit digest of lines."""
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)
