"""Teachers that a vLLM server serves: the logprobs of a student's sampled tokens by the server's prompt logprobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hud import exact_json
from hud.engine.learn.scoring import check_servable, with_listed
from hud.errors import InfrastructureFault, UsageError
from hud.learning.datums import Datum
from hud.outbound import guarded_session, read_bounded

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat
    from hud_platform.models.provider_models import ProviderModel

PROBE = 'Sort 3 10 27; don\'t: naïve Σ, 日本語 \t {"a": [1.5, null]} <b>x</b>\n'
"""Text by which two tokenizers are compared, with the control tokens of the student's."""
_MOST_CONTROLS = 50
_AT_ONCE = 16
"""Concurrent requests."""
_SECONDS = 300.0
_REFUSED = (400, 401, 403, 404, 405, 422)


class ServedTeacher:
    """A model at a provider's address that answers as a vLLM server does."""

    def __init__(self, model: ProviderModel) -> None:
        self._model = model

    def has_tokens_of(self, student: ChatFormat) -> bool:
        """Return whether the server's tokenizer encodes a probe as the student's. Raises `UsageError` if it does not tell."""
        added = student.tokenizer.get_added_tokens_decoder().values()
        controls = [token.content for token in added if token.special][:_MOST_CONTROLS]
        text = PROBE + "".join(controls)
        body = {"prompt": text, "add_special_tokens": False}
        answer = asyncio.run(self._ask([(self._url("/tokenize"), body)]))[0]
        own: list[int] = student.tokenizer.encode(text, add_special_tokens=False).ids
        return bool(answer.get("tokens") == own)

    def score(self, datums: Sequence[Datum], top: int) -> list[Datum]:
        """Return the datums with the teacher's logprobs, and its `top` likeliest tokens, as their reference.

        Raises `UsageError` for temperatures other than 1 and pictures, and `InfrastructureFault` without an answer.
        """
        check_servable(datums, self._model.name)
        url = self._url("/v1/completions")
        bodies = [
            {
                "prompt": datum.tokens.tolist(),
                "max_tokens": 1,
                "temperature": 1.0,
                "prompt_logprobs": top,
                "add_special_tokens": False,
            }
            for datum in datums
        ]
        answers = asyncio.run(self._ask([(url, body) for body in bodies]))
        return [
            self._scored(datum, answer, top) for datum, answer in zip(datums, answers, strict=True)
        ]

    def _scored(self, datum: Datum, answer: dict[str, Any], top: int) -> Datum:
        """Return a datum with its reference. Raises `UsageError` for an answer without logprobs of all its sampled tokens."""
        try:
            listed = [
                None
                if row is None
                else {int(token): value["logprob"] for token, value in row.items()}
                for row in answer["choices"][0]["prompt_logprobs"]
            ]
            return with_listed(datum, listed, top)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise UsageError(
                f"The server of the teacher {self._model.name!r} does not return {top} prompt_logprobs, as a vLLM server does."
            ) from None

    def _url(self, path: str) -> str:
        """Return the address of a route: vLLM's /tokenize is not below /v1."""
        return self._model.url.rstrip("/").removesuffix("/v1") + path

    async def _ask(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the answers to some requests, at most `_AT_ONCE` at a time."""
        import aiohttp

        limit = asyncio.Semaphore(_AT_ONCE)
        async with guarded_session(self._model.reach) as session:

            async def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
                sent = exact_json.dumps({"model": self._model.upstream, **body})
                headers = {"Content-Type": "application/json", **self._model.credentials}
                async with (
                    limit,
                    asyncio.timeout(_SECONDS),
                    session.post(
                        url, data=sent, headers=headers, allow_redirects=False
                    ) as response,
                ):
                    content = await read_bounded(response)
                if response.status in _REFUSED:
                    raise UsageError(
                        f"The server of the teacher {self._model.name!r} refuses {url} ({response.status}): it must be a vLLM server."
                    )
                if response.status != 200:
                    raise InfrastructureFault(
                        f"The server of the teacher {self._model.name!r} answered {response.status}."
                    )
                answer: dict[str, Any] = exact_json.loads(content)
                return answer

            try:
                return list(await asyncio.gather(*(ask(*request) for request in requests)))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise InfrastructureFault(
                    f"The server of the teacher {self._model.name!r} cannot be reached: {error}."
                ) from error
