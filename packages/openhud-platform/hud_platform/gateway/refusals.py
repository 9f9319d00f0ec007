"""Errors of the gateway as refusals, which each dialect formats as its own error type."""

from __future__ import annotations

import logging

from hud import exact_json
from hud.errors import ContextOverflow, HudError, InfrastructureFault
from hud.inference.dialects.codec import Refusal

_log = logging.getLogger("hud.gateway")

_BUSY_SECONDS = 2.0


class UpstreamError(HudError):
    """A provider responded with an error, whose status is passed on."""

    def __init__(
        self,
        message: str,
        status: int,
        retry_after: float | None = None,
        *,
        too_long: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = 400 if too_long else status
        self.retry_after = retry_after
        self.too_long = too_long
        """The conversation exceeds the model's context."""


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal for an error. The text of an unexpected error is logged, not returned to the client."""
    if isinstance(error, InfrastructureFault):
        return Refusal(503, str(error), _BUSY_SECONDS)
    if isinstance(error, HudError):
        wait: float | None = getattr(error, "retry_after", None)
        if wait is None and error.status == 503:
            wait = _BUSY_SECONDS
        too_long = isinstance(error, ContextOverflow) or getattr(error, "too_long", False)
        return Refusal(error.status, str(error), wait, too_long=too_long)
    if isinstance(error, RecursionError | exact_json.NestedTooDeepError):
        return Refusal(400, "A value of this request is nested too deep.")
    _log.error("A request failed: %s", type(error).__name__, exc_info=error)
    return Refusal(
        500, f"The gateway failed on this request ({type(error).__name__}); see the server's log."
    )
