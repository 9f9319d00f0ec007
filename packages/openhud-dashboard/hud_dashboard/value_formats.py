"""Formats of values: numbers, times, and untrusted text."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from hud.eval.results.intervals import bounds, with_interval
from hud_dashboard.trace.values import as_json

NOTHING = "–"
MOST_CHARACTERS = 4_000
"""Default maximum length of a text on a page; a link shows the full text."""
MOST_OF_NAME = 80
"""Maximum length of a task's name in a table."""
_KEPT = "\n\t"
_WITHOUT_KEPT = str.maketrans("", "", _KEPT)
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories of invisible characters and of those that change the direction of text."""


def visible(text: Any, limit: int = MOST_CHARACTERS) -> Markup:
    """Return text safe for display: escaped, truncated at `limit`, with invisible and direction characters made visible."""
    if text is None:
        return Markup("")
    escaped = written(text)
    shown = escaped[:limit]
    if shown.translate(_WITHOUT_KEPT).isprintable():
        parts = [str(escape(shown))]
    else:
        parts = [_seen(character) for character in shown]
    if len(escaped) > limit:
        parts.append(f'<span class="cut">… {len(escaped) - limit:,} more characters</span>')
    return Markup("".join(parts))


def sentence(text: Any, limit: int = MOST_CHARACTERS) -> Markup:
    """Return a message safe for display, with commands in code type where it quotes them in backquotes."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(visible(text, limit))))


def task_name(text: str) -> Markup:
    """Return a task's display name for a table's cell, with places for line breaks: after brackets and underscores."""
    shown = str(visible(text, MOST_OF_NAME))
    return Markup(shown.replace("(", "(<wbr>").replace("_", "_<wbr>"))


def written(value: Any) -> str:
    """Return a value as text: strings unchanged, numbers shortened, everything else as JSON. Never Python's notation."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.12g}"
    if isinstance(value, bool | dict | list | tuple) or value is None:
        return as_json(list(value) if isinstance(value, tuple) else value, indent=False)
    return str(value)


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with thousands separators."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.{digits}f}"


def compact(value: float | None) -> str:
    """Format a count with up to three digits: 950, 1.2k, 34k, 5.6M."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}{letter}" if abs(scaled) < 9.95 else f"{scaled:.0f}{letter}"
    return f"{value:.0f}"


def reward(value: float | None) -> str:
    """Format a reward with three decimals."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.3f}"


def signed(value: float | None) -> str:
    """Format a difference of rewards, with its sign."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def shown_bounds(low: float | None, high: float | None, signed: bool = False) -> str:
    """Format an interval, with the minus sign of `signed`."""
    return bounds(low, high, signed=signed).replace("-", "\N{MINUS SIGN}")


def money(value: float | None) -> str:
    """Format US dollars, with more decimals for small amounts."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


def duration(seconds: float | None) -> str:
    """Format a duration: 0.3 ms, 42 ms, 4.2 s, 12 s, 3 min 05 s, 2 h 10 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.00095 else f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    if rounded < 86_400:
        return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
    return f"{rounded // 86_400} d {rounded % 86_400 // 3600} h"


def moment(value: datetime | str | None) -> datetime | None:
    """Return a time in UTC, from a time or its ISO form."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value is None:
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def ago(value: datetime | str | None, now: datetime | None = None) -> str:
    """Return the time since a given time, in its largest unit."""
    then = moment(value)
    if then is None:
        return NOTHING
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if seconds < 0:
        return then.strftime("%d %b %Y")
    for size, unit in ((86_400 * 30, ""), (86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago" if unit else then.strftime("%d %b %Y")
    return "now"


def short(identifier: str | None) -> str:
    """Return the first characters of an id, which distinguish it from others in practice."""
    return NOTHING if not identifier else identifier.replace("-", "")[:8]


def _seen(character: str) -> str:
    # Joined emoji and some scripts need these two, which do not change the direction of text.
    if character in _KEPT or character in "\u200c\u200d":
        return character
    if unicodedata.category(character) in _HIDDEN:
        return f'<span class="hidden-character">{_name(character)}</span>'
    return str(escape(character))


def _name(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's symbols for control characters.
    return f"U+{code:04X}"


FILTERS = {
    "visible": visible,
    "sentence": sentence,
    "task_name": task_name,
    "written": written,
    "number": number,
    "compact": compact,
    "reward": reward,
    "signed": signed,
    "bounds": shown_bounds,
    "with_interval": with_interval,
    "money": money,
    "duration": duration,
    "moment": moment,
    "ago": ago,
    "short": short,
}
