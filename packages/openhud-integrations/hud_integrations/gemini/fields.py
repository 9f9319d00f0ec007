"""`CamelFields`: a client's JSON with fields in camel or in snake case."""

from __future__ import annotations

import re
from typing import Any

from hud.inference.dialects.fields import Fields


class CamelFields(Fields):
    """A JSON object of Gemini's, whose fields may be in snake case, too: `topP` or `top_p`."""

    def get(self, *names: str) -> Any:
        return super().get(*(spelling for name in names for spelling in (name, _snake(name))))


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda capital: f"_{capital[0].lower()}", name)
