"""Stop strings: found wherever token borders fall, and never shown."""

from __future__ import annotations

from hud.engine.chat.tool_calls.marked import held_back


class StopScanner:
    """Text on its way to a reader, up to the first stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self.found: str | None = None
        """The stop string that ended the text."""
        self._held = ""

    def take(self, text: str) -> str:
        """Return what may be shown of the text so far; what could become a stop string is held back."""
        whole = self._held + text
        hits = [(at, stop) for stop in self.stops if (at := whole.find(stop)) >= 0]
        if hits:
            # The one that begins first; of two that begin together the shorter, which was complete first.
            at, self.found = min(hits, key=lambda hit: (hit[0], len(hit[1])))
            self._held = ""
            return whole[:at]
        keep = max((held_back(whole, stop) for stop in self.stops), default=0)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def end(self) -> str:
        """Return what was held back and became no stop string."""
        held, self._held = self._held, ""
        return held
