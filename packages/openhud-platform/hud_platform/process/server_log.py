"""Log of the HTTP server: expected errors without a traceback."""

from __future__ import annotations

import logging

from hud.errors import HudError


class BrokenResponses(logging.Filter):
    """Filter that makes one warning of an expected error after the begin of a response, such as a provider's stream that broke off.

    The error aborts the connection, which is the client's only sign of it; uvicorn logs it as an unexpected one.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # Starlette raises another error of its own from one that it has a handler for.
        for expected in (error, None if error is None else error.__cause__):
            if isinstance(expected, HudError):
                record.levelno, record.levelname = logging.WARNING, "WARNING"
                record.msg, record.args = "A response broke off: %s", (str(expected),)
                record.exc_info = record.exc_text = None
        return True


_BROKEN_RESPONSES = BrokenResponses()


def shorten_server_log() -> None:
    """Add `BrokenResponses` to uvicorn's logger of errors."""
    logging.getLogger("uvicorn.error").addFilter(_BROKEN_RESPONSES)
