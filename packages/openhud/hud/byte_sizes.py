"""Sizes in bytes, as people write them: 8GiB, 512m or 1.5 GB, with units of 1,024."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int | None:
    """Return the bytes of a written size; None for a text that is no size."""
    written = _SIZE.fullmatch(text.strip())
    return None if written is None else int(float(written[1]) * _UNITS[written[2].lower()])
