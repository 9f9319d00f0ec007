"""Stop strings: found across token boundaries, and removed from the output."""

from __future__ import annotations

from hud.engine.chat.tool_calls.marked import held_back


class StopScanner:
    """Incremental scanner that returns text up to the first stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self.stop_string: str | None = None
        """Stop string that ended the text."""
        self._held = ""

    def take(self, text: str) -> str:
        """Add text and return the part that cannot become a stop string; the rest is held back."""
        pending = self._held + text
        hits = [(at, stop) for stop in self.stops if (at := pending.find(stop)) >= 0]
        if hits:
            # The earliest match; of two at the same position the shorter, which was complete first.
            at, self.stop_string = min(hits, key=lambda hit: (hit[0], len(hit[1])))
            self._held = ""
            return pending[:at]
        keep = max((held_back(pending, stop) for stop in self.stops), default=0)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def end(self) -> str:
        """Return the text that was held back, at the end of the output."""
        held, self._held = self._held, ""
        return held
