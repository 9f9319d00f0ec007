"""Turn reader: converts the sampled ids of one choice to events for the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hud.engine.chat.tool_calls.format import Parsed, Piece, Said, TurnParser, parse_output
from hud.inference.dialects.events import (
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Finished,
    Reason,
    ReasoningDelta,
    TextDelta,
    TokenInfo,
    TokensDrawn,
)
from hud.inference.dialects.request import GenerationRequest
from hud.trace import Sample, ToolCall, Usage
from hud.trace.sampled.pictures import Picture
from hud_platform.gateway.chat_formats import Format
from hud_platform.gateway.stopping import StopScanner
from hud_platform.serving.token_engine import TokenDelta, TokenEnd


@dataclass(frozen=True)
class Prompt:
    """Prompt of a model, as token ids."""

    ids: list[int]
    pictures: tuple[Picture, ...] = ()
    opened: bool = False
    """True if it ends inside reasoning, which the turn continues."""
    begun: bool = False
    """True if it ends with the beginning of the answer, whose next words may start with a space."""


class TurnReader:
    """Reader of one choice. Without streaming, the turn is parsed when it is complete."""

    def __init__(
        self, format: Format, request: GenerationRequest, choice: int, prompt: Prompt
    ) -> None:
        self.request = request
        self.choice = choice
        self.stopped = False
        """True once the turn has ended: later tokens are discarded."""
        self._format = format
        self._prompt = prompt
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._cached = 0
        self._version: str | None = None
        self._stop_ids = format.chat.stop_ids
        self._detokenizer = format.vocabulary.detokenizer()
        self._stops = StopScanner(request.sampling.stop) if request.sampling.stop else None
        self._tools = request.offered
        self._calling = format.chat.tool_format
        calls = request.tool_choice.mode != "none"
        self._parser: TurnParser | None = None
        if request.prompts is None and (request.stream or not request.parallel_calls or not calls):
            self._parser = self._calling.parser(self._tools, opened=prompt.opened, calls=calls)
        self._text: list[str] = []
        self._leading: str | None = "" if prompt.begun else None
        """Whitespace before the first word, which parsers remove; None: not kept, or the word has come."""
        self._calls = 0
        # The turn ends with the token that completed a stop string, or the only tool call allowed.
        self._each = self._stops is not None or not request.parallel_calls

    def take(self, delta: TokenDelta) -> list[Event]:
        """Return the events of newly sampled tokens."""
        if not self._each:
            return self._take(delta, 0, len(delta.token_ids))
        events: list[Event] = []
        for place in range(len(delta.token_ids)):
            events += self._take(delta, place, place + 1)
            if self.stopped:
                break
        return events

    def end(self, end: TokenEnd | None) -> list[Event]:
        """Return the events of held-back text, and the final event; `end` is None if the reader ended the turn."""
        events: list[Event] = []
        if not self.stopped:
            text = self._detokenizer.end()
            if self._stops is not None:
                text = self._stops.take(text)
                text += self._stops.end()
            events += self._say(text)
        malformed = False
        if self._parser is not None:
            events += self._events(self._parser.end() if self._calls_open() else [])
            malformed = self._parser.malformed
        elif self.request.prompts is None:
            text = "".join(self._text)
            parsed = parse_output(text, self._calling, self._tools, opened=self._prompt.opened)
            events += self._events(_pieces(parsed))
            malformed = parsed.malformed
        events.append(self._finished(end, malformed))
        return events

    def _calls_open(self) -> bool:
        return self.request.parallel_calls or self._calls == 0

    def _take(self, delta: TokenDelta, start: int, stop: int) -> list[Event]:
        ids = delta.token_ids[start:stop]
        self._cached, self._version = delta.cached_tokens, delta.version
        self._swaps = delta.swaps
        self._ids += ids
        self._logprobs += delta.logprobs[start:stop]
        events: list[Event] = []
        if self.request.top_logprobs is not None:
            events.append(TokensDrawn(self.choice, self._infos(delta, start, stop)))
        text = self._detokenizer.take(ids[:-1] if ids[-1] in self._stop_ids else ids)
        if self._stops is not None:
            text = self._stops.take(text)
            self.stopped = self._stops.stop_string is not None
        if text:
            events += self._say(text)
        return events

    def _say(self, text: str) -> list[Event]:
        if self._leading is not None and not self._leading.strip():
            self._leading += text
        if self._parser is not None:
            return self._events(self._parser.take(text))
        if self.request.prompts is not None:
            return [TextDelta(self.choice, text)] if text else []
        self._text.append(text)
        return []

    def _events(self, pieces: list[Piece]) -> list[Event]:
        events: list[Event] = []
        for piece in pieces:
            if isinstance(piece, Said):
                kind = TextDelta if piece.kind == "text" else ReasoningDelta
                events.append(kind(self.choice, self._spaced(piece)))
                continue
            events += self._call(piece)
            if not self.request.parallel_calls:
                self.stopped = True
                break
        return events

    def _spaced(self, piece: Said) -> str:
        """Return a piece's text; the first one after a given beginning with its leading whitespace."""
        leading = self._leading
        if leading is None or piece.kind != "text":
            return piece.text
        self._leading = None
        return leading[: len(leading) - len(leading.lstrip())] + piece.text

    def _call(self, call: ToolCall) -> list[Event]:
        choice, position = self.choice, self._calls
        self._calls += 1
        return [
            CallBegun(choice, position, call.id, call.name),
            CallArguments(choice, position, call.arguments_text),
            CallEnded(choice, position),
        ]

    def _infos(self, delta: TokenDelta, start: int, stop: int) -> list[TokenInfo]:
        vocabulary = self._format.vocabulary

        def info(token: int, logprob: float, top: list[tuple[int, float]]) -> TokenInfo:
            # Tokens that a grammar forbids have no logprob.
            others = [info(other, value, []) for other, value in top if value > float("-inf")]
            return TokenInfo(vocabulary.text(token), vocabulary.raw(token), logprob, others)

        return [
            info(
                delta.token_ids[place],
                delta.logprobs[place],
                delta.top[place] if delta.top is not None else [],
            )
            for place in range(start, stop)
        ]

    def _finished(self, end: TokenEnd | None, malformed: bool) -> Finished:
        reason: Reason = "tool_calls" if self._calls else "stop"
        if end is not None and end.finish_reason == "length":
            reason = "length"
        if end is not None:
            self._cached, self._version = end.cached_tokens, end.version
        sample = None
        # Logprobs of a truncated distribution (top-p, top-k) cannot be trained on.
        if self.request.return_token_ids and not self.request.cut:
            # Constructed without validation: the lists come from the engine and are long.
            sample = Sample.model_construct(
                prompt_token_ids=self._prompt.ids,
                pictures=list(self._prompt.pictures),
                output_token_ids=self._ids,
                output_logprobs=self._logprobs,
                checkpoint=self._version,
                swaps=[swap for swap in self._swaps if swap[0] < len(self._ids)],
                temperature=self.request.sampling.effective_temperature,
            )
        return Finished(
            self.choice,
            reason,
            Usage(
                prompt_tokens=len(self._prompt.ids),
                completion_tokens=len(self._ids),
                cached_tokens=self._cached,
            ),
            stop_string=None if self._stops is None else self._stops.stop_string,
            malformed=malformed,
            sample=sample,
            checkpoint=self._version,
        )


def _pieces(parsed: Parsed) -> list[Piece]:
    kinds: list[tuple[Literal["reasoning", "text"], str | None]] = [
        ("reasoning", parsed.reasoning),
        ("text", parsed.content),
    ]
    spoken: list[Piece] = [Said(kind, text) for kind, text in kinds if text]
    return [*spoken, *parsed.tool_calls]
