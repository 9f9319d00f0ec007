"""Retry policy of provider calls: retried errors, delays, and final errors.

One policy for all dialects. Attempts raise errors of SDKs or HTTP libraries, which are classified by their attributes,
without importing the libraries. Independent of conversations.

    429 408 409 425 5xx 529     retried, after `Retry-After` if the server sends it
    no connection, time-outs,   retried
    streams that break off
    failure of the last retry   InfrastructureFault: the run is not measured
    429 503 529                 also: fewer requests in flight (`hud.inference.request_window`)
    401 402 403 404, no quota   RefusedError that ends the job: it applies to every run
    400 413 422 and the rest    RefusedError of this request; ContextOverflow if it was too long
"""

from __future__ import annotations

import re
from asyncio import sleep
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from json import JSONDecodeError
from typing import Any, TypeVar

from hud.errors import ContextOverflow, HudError, InfrastructureFault, RefusedError
from hud.inference.context_overflow import is_overflow
from hud.inference.request_window import RequestWindow
from hud.processes.backoff import Backoff

T = TypeVar("T")

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_CROWDED = frozenset({429, 503, 529})
"""Statuses of rate limits and of overloaded servers."""
_EVERYWHERE = frozenset({401, 402, 403, 404})
_PASSING = (
    "overload",
    "ratelimit",
    "servererror",
    "timeout",
    "apierror",
    "unavailable",
    "internal",
)
"""Parts of transient error types in responses, without underscores and in lower case."""
_NEVER_TOO_LONG = frozenset({401, 402, 403, 404, 429})
_ANSWERS = frozenset({"choices", "candidates", "content", "output", "response", "type"})
"""Fields of answers, of which errors have none."""
_CODES = ("code", "status", "status_code", "error_code")
_NO_CODES = ("error", "fail", "failed", "failure")
_TRANSPORTS = ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests")
_KEY_PATTERN = re.compile(r"\b(sk|hud|AIza|tml)[-_A-Za-z0-9*]{12,}")


@dataclass(frozen=True)
class RetryPolicy:
    """Retry policy: number of attempts, and delays."""

    attempts: int = 5
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 30.0
    """Maximum delay in seconds, also for a longer `Retry-After`."""

    @property
    def backoff(self) -> Backoff:
        """Delays without a `Retry-After`."""
        return Backoff(self.first_wait_seconds, self.longest_wait_seconds, spread=0.5)


@dataclass(frozen=True)
class Provider:
    """The provider, for error messages."""

    url: str
    key_variable: str | None = None
    """Setting of its key, for the message of a 401."""


class BrokenAnswer(Exception):
    """A truncated or empty response, raised by dialects and retried."""


class AnsweredError(Exception):
    """An error within a response of status 200; its code or status determines whether it is retried."""

    def __init__(self, code: str | None, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.body = {"code": code or "server_error", "message": message}
        self.status_code = status


def answered_error(error: Any) -> AnsweredError:
    """Return the exception for an error in a response of status 200: an object, or its sentence."""
    status = None
    for name in ("code", "status", "status_code", "http_code"):
        number = str(error.get(name)) if isinstance(error, dict) else ""
        if number.isdecimal() and 400 <= int(number) < 600:
            status = int(number)
            break
    return AnsweredError(code_of(error), message_of(error), status)


def error_in(answer: dict[str, Any]) -> Any:
    """Return the error in a response's JSON, or in an event of its stream; None for a response without one."""
    if answer.get("error"):
        return answer["error"]
    if "error" in (answer.get("object"), answer.get("type")):
        return answer
    return answer if not _ANSWERS & answer.keys() and _is_failure(answer) else None


def _is_failure(answer: dict[str, Any]) -> bool:
    """Return True for the form in which web frameworks, and the proxies built on them, send an error."""
    if answer.get("detail") or answer.get("errors") or answer.get("success") is False:
        return True
    sentence = answer.get("message") or answer.get("msg")
    return isinstance(sentence, str) and any(answer.get(name) for name in _CODES)


class ErrorStatus(Exception):
    """A response with an error status."""

    def __init__(self, status_code: int, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(f"status {status_code}")
        self.status_code, self.body, self.headers = status_code, body, headers


@dataclass(frozen=True)
class Trouble:
    """Result of an attempt."""

    description: str
    status: int | None = None
    curable: bool = False
    retry_after: float | None = None
    too_long: bool = False
    no_quota: bool = False
    crowded: bool = False
    """The server refuses what is more than it takes now."""


async def ask(
    attempt: Callable[[], Awaitable[T]],
    provider: Provider,
    policy: RetryPolicy | None = None,
    window: RequestWindow | None = None,
) -> T:
    """Return the result of `attempt`, with retries of transient errors.

    `window` adapts how many requests are in flight; a refusal for crowding counts as an attempt only where the window has
    had no answer since the one before. Raises `InfrastructureFault` after the last retry, `RefusedError` for permanent
    errors; other exceptions pass through.
    """
    policy, own = policy or RetryPolicy(), window is None
    window = window or RequestWindow()
    number, answers, again = 0, window.answers, False
    while True:
        async with window.slot(again=again) as slot:
            try:
                result = await attempt()
            except HudError:
                raise
            except Exception as error:
                trouble = trouble_of(error)
                if trouble is None:
                    raise
                if not trouble.curable:
                    raise _refusal(trouble, provider) from error
                number += not (trouble.crowded and window.answers > answers)
                if number == policy.attempts:
                    tries = f"after {number} attempts" if number > 1 else "after one attempt"
                    sentence = f"{_sentence(trouble, provider)} ({tries})."
                    raise InfrastructureFault(sentence) from error
                if trouble.crowded:
                    slot.refused(None if own else trouble.retry_after)
            else:
                slot.answered()
                return result
        requested = trouble.retry_after
        pause = policy.backoff.seconds(max(1, number)) if requested is None else requested
        answers, again = window.answers, True
        await sleep(min(pause, policy.longest_wait_seconds))


def trouble_of(error: BaseException) -> Trouble | None:
    """Return the details of an error of a provider's SDK or of an HTTP library, None for other errors."""
    if isinstance(error, BrokenAnswer):
        return Trouble(str(error), curable=True)
    if isinstance(error, JSONDecodeError):
        shown = " ".join(error.doc[:200].split())
        return Trouble(f"answered with something that is no JSON: {shown}", curable=True)
    body = getattr(error, "body", None)
    answer = str(error) if body is None else body
    codes = [getattr(error, name, None) for name in ("status_code", "code")]
    status = next((code for code in codes if isinstance(code, int)), None)
    if status is not None and status >= 300:
        headers = getattr(getattr(error, "response", error), "headers", None)
        return http_trouble(status, answer, headers or {})
    kind = code_of(body)
    if kind is not None:
        # Sent within a response of status 200.
        description = f"broke off with {kind}: {message_of(answer)}"
        too_long = is_overflow(kind, message_of(answer))
        plain = kind.lower().replace("_", "")
        curable = not too_long and any(part in plain for part in _PASSING)
        crowded = curable and ("overload" in plain or "ratelimit" in plain)
        return Trouble(description, curable=curable, too_long=too_long, crowded=crowded)
    if isinstance(error, OSError) or _is_transport(error):
        text = str(error).rstrip(".") or "no answer"
        return Trouble(f"did not answer: {type(error).__name__}: {text}", curable=True)
    return None


def http_trouble(status: int, body: Any, headers: Mapping[str, str]) -> Trouble:
    """Return the details of an HTTP response with an error status."""
    detail = message_of(body)
    code = code_of(body)
    too_long = status not in _NEVER_TOO_LONG and is_overflow(code, detail)
    no_quota = status == 429 and code in ("insufficient_quota", "billing_hard_limit_reached")
    return Trouble(
        f"answered {status}: {detail}",
        status=status,
        curable=(status in RETRIED_STATUSES or status >= 500) and not (no_quota or too_long),
        retry_after=retry_after(headers),
        too_long=too_long,
        no_quota=no_quota,
        crowded=status in _CROWDED and not no_quota,
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the server's requested delay in seconds, by any of the usual headers."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) / scale
        except ValueError:
            seconds = _seconds_until(text)
        if seconds == seconds and seconds >= 0:  # NaN.
            return seconds
    return None


def _refusal(trouble: Trouble, provider: Provider) -> RefusedError:
    sentence = _sentence(trouble, provider)
    if trouble.too_long:
        return ContextOverflow(f"{sentence}.")
    if trouble.status == 401 and provider.key_variable:
        sentence = f"{sentence}; check {provider.key_variable}"
    return RefusedError(
        f"{sentence}.", everywhere=trouble.no_quota or trouble.status in _EVERYWHERE
    )


def _sentence(trouble: Trouble, provider: Provider) -> str:
    # Some servers repeat the key in the message; it must not be recorded in a trace.
    return f"{provider.url} {_KEY_PATTERN.sub('(key)', trouble.description).rstrip('. ')}"


def code_of(body: Any) -> str | None:
    """Return the error type in a provider's error body."""
    body = _single(body)
    if not isinstance(body, dict):
        return None
    inner = body.get("error")
    fields = inner if isinstance(inner, dict) else body
    for name in ("code", "type", "status"):
        value = fields.get(name)
        if isinstance(value, str) and value and value.lower() not in _NO_CODES:
            return value
    return None


def message_of(body: Any) -> str:
    """Return the sentence in an error body of any provider: at most 500 characters of one line."""
    value = _upstream(_single(body))
    for name in ("detail", "error", "message"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    text = value if isinstance(value, str) else str(value)
    return " ".join(text.split())[:500] or "(nothing)"


def _upstream(body: Any) -> Any:
    """Return an error body with the sentence of the provider behind OpenRouter, which says "Provider returned error"."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("metadata"), dict):
        return body
    raw = error["metadata"].get("raw")
    return {"message": f"{error.get('message')}: {raw}"} if raw else body


def _single(body: Any) -> Any:
    """Return an error body without the list that some layers for chat completions put around it."""
    return body[0] if isinstance(body, list) and len(body) == 1 else body


def _seconds_until(date: str) -> float:
    try:
        return (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return float("nan")


def _is_transport(error: BaseException) -> bool:
    """Return True for a transport failure of an HTTP library, or of an SDK over one."""
    for kind in type(error).__mro__:
        if kind.__name__ in ("APIConnectionError", "APITimeoutError", "RetryableError"):
            return True
        if kind.__module__.partition(".")[0] in _TRANSPORTS:
            return True
    return False
