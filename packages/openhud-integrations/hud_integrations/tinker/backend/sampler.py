"""The `TurnSampler` of a policy on a Tinker service. Every turn is sampled by one version of the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.sample.request import Request, SamplerClosed, Turn, room_after
from hud.engine.sample.token_sampling import Uniforms
from hud.errors import HudError, InfrastructureFault, UsageError
from hud.trace import SamplingParams
from hud_integrations.tinker.backend.connection import WAIT_SECONDS
from hud_integrations.tinker.backend.weights import SavedPaths, TinkerWeights

SEEDS = 1 << 31
"""Seeds of the service are below this."""


class TinkerSampler:
    """Samples turns by a sampling client, which is replaced when the version is set."""

    cache = None

    def __init__(
        self,
        weights: TinkerWeights,
        chat: ChatFormat,
        find: Callable[[str | None], SavedPaths | None],
    ) -> None:
        """`find` returns where the weights of a checkpoint were saved, None where it was not."""
        self._weights, self._chat, self._find = weights, chat, find
        self._version: str | None = None
        self._client: Any = None
        self._futures: set[Future[Any]] = set()
        self._closed = False

    @property
    def version(self) -> str | None:
        """The checkpoint that is sampled; None: the base model."""
        return self._version

    @version.setter
    def version(self, version: str | None) -> None:
        saved = self._find(version)
        if saved is None and version is not None:
            self._client = self._weights.present_sampling_client()
        else:
            self._client = self._weights.sampling_client(saved)
        self._version = version

    @property
    def load(self) -> int:
        return len(self._futures)

    @property
    def closed(self) -> bool:
        return self._closed

    def queue_length(self) -> int:
        """Return 0: requests wait on the service."""
        return 0

    @contextmanager
    def exclusive(self, *, in_flight: bool = False) -> Iterator[None]:
        """Change the weights inside the block: active turns continue with the old ones, which the service keeps.

        Raises `UsageError` with `in_flight`.
        """
        if in_flight:
            raise UsageError(
                "A Tinker service finishes every turn with the weights that began it: set swap = 'finish' (--swap finish)."
            )
        yield

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        """Queue one turn; see `Sampler.submit`. Raises `SamplerClosed`, `UsageError` for what the service cannot do."""
        if self._closed or self._client is None:
            raise SamplerClosed("The policy of this model was unloaded.")
        if turn.constraint is not None:
            raise UsageError("A Tinker service samples no answers in a fixed form; leave it out.")
        if turn.top:
            raise UsageError(
                "The likeliest tokens are not read from a Tinker service; leave top_logprobs out."
            )
        config = self._weights.config
        context = config.max_position_embeddings
        if turn.pictures:
            raise UsageError("Prompts with pictures are not sampled by a Tinker backend.")
        room = room_after(turn.prompt, config.vocab_size, context, "the model's context")
        request = Request(
            **vars(turn),
            uniforms=Uniforms(turn.params.seed),
            most=turn.params.most_tokens(room),
            listener=listener,
            version=self._version,
        )
        future = self._sample(request)
        self._futures.add(future)
        request.cancel = partial(_cancel, future)
        future.add_done_callback(partial(self._ended, request))
        return request

    def listed(self, prompts: Sequence[list[int]], top: int) -> list[list[dict[int, float] | None]]:
        """Return, for each token of each prompt, the logprobs of itself and of the `top` likeliest; None for a first token. Blocks."""
        from tinker import types

        if self._client is None:
            raise SamplerClosed("The policy of this model was unloaded.")
        sampling = types.SamplingParams(max_tokens=1, temperature=1.0)
        with self._weights.service.errors():
            futures = [
                self._client.sample(
                    types.ModelInput.from_ints(prompt),
                    1,
                    sampling,
                    include_prompt_logprobs=True,
                    topk_prompt_logprobs=top,
                )
                for prompt in prompts
            ]
            answers = [future.result(WAIT_SECONDS) for future in futures]
        rows = []
        for prompt, answer in zip(prompts, answers, strict=True):
            own = answer.prompt_logprobs
            likeliest = answer.topk_prompt_logprobs or [None] * len(prompt)
            rows.append(
                [
                    None if own[place] is None else {**dict(pairs or ()), token: own[place]}
                    for place, (token, pairs) in enumerate(zip(prompt, likeliest, strict=True))
                ]
            )
        return rows

    def revive(self) -> None:
        """Sample again after `close`."""
        if self._closed:
            self._closed = False
            self.version = self._version

    def close(self) -> None:
        """Stop sampling; unfinished turns end with `SamplerClosed`."""
        self._closed, self._client = True, None
        for future in list(self._futures):
            future.cancel()

    def _sample(self, request: Request) -> Future[Any]:
        from tinker import types

        sampling = service_params(request.params, request.most, request.stop_ids, self._chat)
        prompt = types.ModelInput.from_ints(request.prompt)
        with self._weights.service.errors():
            future: Future[Any] = self._client.sample(prompt, 1, sampling).future()
        return future

    def _ended(self, request: Request, future: Future[Any]) -> None:
        """Take over the result of a turn; called from the client's thread."""
        self._futures.discard(future)
        try:
            with self._weights.service.errors():
                done = future.result()
        except CancelledError:
            request.outcome = SamplerClosed("The sampler was closed while it sampled.")
        except HudError as error:
            request.outcome = InfrastructureFault(str(error))
        except Exception as error:
            request.outcome = InfrastructureFault(
                f"Sampling on the Tinker service failed: {type(error).__name__}: {error}"
            )
        else:
            (sequence,) = done.sequences
            request.token_ids += sequence.tokens
            request.logprobs += sequence.logprobs
            request.cached = done.prompt_cache_hit_tokens or 0
            request.end(sequence.stop_reason)
        request.listener()


def service_params(
    params: SamplingParams, most: int, stop_ids: Collection[int], chat: ChatFormat
) -> Any:
    """Return parameters as the service's, for at most `most` tokens."""
    from tinker import types

    ends = sorted(stop_ids)
    stop: list[int] | list[str] = ends
    if params.stop:
        # A request has stops of one kind.
        texts = [chat.tokenizer.id_to_token(stop_id) for stop_id in ends]
        stop = [*params.stop, *(text for text in texts if text is not None)]
    return types.SamplingParams(
        max_tokens=most,
        seed=None if params.seed is None else params.seed % SEEDS,
        stop=stop,
        temperature=params.effective_temperature,
        top_p=params.effective_top_p,
        top_k=params.effective_top_k or -1,
    )


def _cancel(future: Future[Any]) -> None:
    future.cancel()
