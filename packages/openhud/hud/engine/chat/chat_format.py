"""The chat format of a model folder: its own tokenizer and its own Jinja template.

Guarantees: a later turn's prompt is the earlier turn's ids, unchanged, plus the rendering of the new messages; sampled
text is never tokenized again. Control tokens occur only where the template wrote them: text of users, tools, environments
and callers is plain text, also if it spells a control token.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hud.engine.chat.chat_template import ChatTemplate
from hud.engine.chat.conversation_pictures import (
    ConversationPictures,
    PromptIds,
    ShownPicture,
)
from hud.engine.chat.conversation_renderer import ConversationRenderer, template_for
from hud.engine.chat.prompt_tokens import PromptTokenizer
from hud.engine.chat.template_text import Span, TemplateText, joined
from hud.engine.chat.tokenizer_settings import (
    chat_templates,
    read_json,
    special_tokens,
)
from hud.engine.chat.tokenizers.native_errors import decode
from hud.engine.chat.tokenizers.prompt_process import PromptProcess
from hud.engine.chat.tokenizers.tokenizer_file import load_tokenizer
from hud.engine.chat.tool_calls.format import Parsed, parse_output
from hud.engine.chat.tool_calls.formats import format_named, format_of_template
from hud.engine.config import DecoderConfig, is_token_id, token_ids
from hud.errors import StoreError, UsageError
from hud.trace import ChatMessage, Continuation, ToolSpec

if TYPE_CHECKING:
    from hud.engine.chat.grammars import Grammars


class ChatFormat:
    """Conversion of a model's conversations to token ids, and of its output to messages."""

    def __init__(
        self, folder: Path, config: DecoderConfig, *, tool_call_parser: str | None = None
    ) -> None:
        """`tool_call_parser` names a format of `hud.engine.chat.tool_calls`; None: that of the chat template."""
        self.folder = folder
        self.pictures = _pictures_of(folder, config)
        """Pictures of its prompts; None: it reads text alone."""
        loaded = load_tokenizer(folder)
        self.tokenizer = loaded.tokenizer
        self.special = special_tokens(folder)
        self._templates = {
            name: ChatTemplate(text, folder) for name, text in chat_templates(folder).items()
        }
        with_tools = self.template(tools=True).text
        self.tool_format = (
            format_of_template(with_tools)
            if tool_call_parser is None
            else format_named(tool_call_parser)
        )
        templates = self.template(tools=False).text + with_tools
        self.encoding_threads: Executor | None = None
        """Threads for prompts, where a short one may take long; None: any thread, or the event loop for short ones."""
        self._prompts: PromptTokenizer | PromptProcess
        if loaded.text is None:
            self._prompts = PromptTokenizer(self.tokenizer, templates, loaded.growth)
        else:
            self._prompts = PromptProcess(loaded.text, templates, loaded.growth)
            self.encoding_threads = self._prompts.threads
        self._renderer = ConversationRenderer(
            self._templates, self.tool_format, self.special, self.pictures
        )
        self.stop_ids = self._stop_ids(config)
        """Ids that end a turn."""
        texts = {self.tokenizer.id_to_token(token): token for token in sorted(self.stop_ids)}
        self._stops = {text: token for text, token in texts.items() if text}
        self._stop = re.compile("|".join(map(re.escape, self._stops)))
        if self.pictures is not None:
            # No picture belongs to a token that was sampled.
            self.stop_ids |= {self.pictures.processor.token}
        self.end_id = self._end_id()

    def render_apart(self) -> None:
        """Have prompts made in a thread of this format's own: its template takes long, and other models need theirs."""
        if self.encoding_threads is None:
            self.encoding_threads = ThreadPoolExecutor(1, "template")

    def template(self, *, tools: bool) -> ChatTemplate:
        """Return the template of conversations with tools, or of those without."""
        return template_for(self._templates, tools=tools)

    def render_text(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
        generation: bool = True,
    ) -> TemplateText:
        """Return the conversation rendered by the template; `effort` as for `ReasoningSwitch`."""
        return self._renderer.render(messages, tools, effort=effort, generation=generation)

    @property
    def shows_tools(self) -> bool:
        """True if the template writes the tools it is given; False: they are written into its system prompt."""
        return self._renderer.shows_tools

    @property
    def shows_calls(self) -> bool:
        """True if the template writes tool calls and their results; False: they are written as texts."""
        return self._renderer.shows_calls

    @cached_property
    def grammars(self) -> Grammars:
        """Grammars over the loaded tokenizer. Raises `UsageError` without llguidance."""
        from hud.engine.chat.grammars import grammars_of  # Imports torch, which few callers need.

        return grammars_of(self.tokenizer, self.end_id)

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
    ) -> PromptIds:
        """Return the prompt ids of a conversation, ready for the assistant's turn."""
        return self._prompt(self.render_text(messages, tools, effort=effort), messages)

    def render_beginning(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
    ) -> PromptIds:
        """Return the prompt ids of a conversation whose last message is the beginning of the assistant's turn.

        Raises `UsageError` for a beginning with tool calls, and for a template that begins turns with reasoning.
        """
        *before, last = messages
        if last.get("tool_calls"):
            raise UsageError(
                "The conversation ends with tool calls: add their results, which the model answers."
            )
        prompt = self.render_text(before, tools, effort=effort)
        if self.opens_reasoning(self.encode_rendered(prompt)):
            raise UsageError(
                "The conversation ends with an assistant message, but this model's turns begin with reasoning: end it with "
                "a user message, or switch the reasoning off (effort 'none')."
            )
        # Encoded together, as the model would have written it.
        return self._prompt(joined((prompt, last.get("content") or "")), before)

    def extend(
        self,
        continuation: Continuation,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
    ) -> PromptIds | None:
        """Return the prompt: the continuation's ids, and the rendering of the messages that they do not cover.

        None if the template renders the covered messages differently with the new ones: it removes the reasoning of
        earlier turns, or moves the tools. Differences in the template's own text are ignored: Qwen3 writes an empty block
        of reasoning in the last turn only.
        """
        covered = _covered_length(messages, continuation.covered)
        if covered is None:
            return None
        answered = messages[:covered]
        before = self.render_text(answered, tools, effort=effort, generation=False)
        rendered = self.render_text(messages, tools, effort=effort)
        start = self._covered_end(before, rendered)
        if start is None:
            return None
        # The rendering after the covered turn's end belongs to the next prompt.
        pictures, tail = self._read(messages), rendered[start:]
        added = self._encoded(tail, pictures[len(pictures) - self._count(tail) :])
        ids = list(continuation.token_ids)
        if not ids or ids[-1] not in self.stop_ids:
            return self._placed(ids + added, pictures)  # The turn reached its length limit.
        ends = added[:1] == ids[-1:] or self.turn_end(before) is not None
        return self._placed(ids + added[1:], pictures) if ends else None

    def _prompt(self, text: TemplateText, messages: Sequence[ChatMessage]) -> PromptIds:
        """Return the prompt of a rendered conversation."""
        pictures = self._read(messages)
        prompt = self._placed(self._encoded(text, pictures), pictures)
        if prompt is None:
            raise UsageError(
                f"{self.folder}: the tokens of a picture in the prompt are not those of its picture processor."
            )
        return prompt

    def _read(self, messages: Sequence[ChatMessage]) -> list[ShownPicture]:
        return [] if self.pictures is None else self.pictures.read(messages)

    def _count(self, text: TemplateText) -> int:
        return 0 if self.pictures is None else self.pictures.count(text)

    def _encoded(self, text: TemplateText, pictures: Sequence[ShownPicture]) -> list[int]:
        if self.pictures is not None:
            text = self.pictures.expanded(text, pictures)
        return self.encode_rendered(text)

    def _placed(self, ids: list[int], pictures: Sequence[ShownPicture]) -> PromptIds | None:
        return PromptIds(ids) if self.pictures is None else self.pictures.placed(ids, pictures)

    def _covered_end(self, before: TemplateText, rendered: TemplateText) -> int | None:
        """Return the end of the covered turn in `rendered`, None if the template renders the covered messages differently.

        That is before its end-of-turn token; some templates (GLM's) write none, and the next message's first token ends it.
        """
        end = self.turn_end(before)
        if rendered.startswith(before):
            return len(before) if end is None else end[0]
        ends = self._turn_ends(before)
        again = self._turn_ends(rendered)[: len(ends)]
        if (
            end is None
            or len(again) < len(ends)
            or before[slice(*end)] != rendered[slice(*again[-1])]
        ):
            return None
        start = again[-1][0]
        return (
            start if before[: end[0]].caller_pieces() == rendered[:start].caller_pieces() else None
        )

    def _turn_ends(self, text: TemplateText) -> list[Span]:
        """Return the positions of the template's end-of-turn tokens."""
        return [
            match.span() for own in text.own for match in self._stop.finditer(text, own[0], own[1])
        ]

    def turn_end(self, text: TemplateText) -> Span | None:
        """Return the position of the last turn's end-of-turn token; None if a caller's text follows it."""
        first, last = text.own[-1] if text.own else (0, 0)
        if last < len(text):
            return None
        spans = [match.span() for match in self._stop.finditer(text, first, last)]
        return spans[-1] if spans else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of trusted raw text: special tokens in it are encoded as such."""
        return self._prompts.raw(text)

    def encode_rendered(self, text: TemplateText) -> list[int]:
        """Return the ids of rendered text: control tokens only where the template wrote them."""
        return self._prompts.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without the token that ended the turn."""
        turn_ids = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        return decode(self.tokenizer, turn_ids)

    def parse(
        self, ids: Sequence[int], tools: Sequence[ToolSpec], *, opened: bool = False
    ) -> Parsed:
        """Return the parsed turn of sampled ids; `opened`: their prompt opened the model's reasoning."""
        return parse_output(self.decode(ids), self.tool_format, tools, opened=opened)

    def opens_reasoning(self, prompt: Sequence[int]) -> bool:
        """Return True for a prompt that ends within reasoning: some templates open it."""
        tail = decode(self.tokenizer, prompt[-8:])
        return tail.rstrip().endswith(self.tool_format.thinking[0])

    def _end_id(self) -> int:
        """Return the template's end-of-turn token; eos_token if it writes none."""
        talk: list[ChatMessage] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "!"},
        ]
        with contextlib.suppress(UsageError):
            text = self.render_text(talk, [], generation=False)
            end = self.turn_end(text)
            if end is not None:
                return self._stops[text[slice(*end)]]
        ends = self.special.get("eos_token")
        token = None if ends is None else self.tokenizer.token_to_id(ends)
        return min(self.stop_ids) if token is None else token

    def _stop_ids(self, config: DecoderConfig) -> frozenset[int]:
        """Return every token that ends a turn: of the configuration, its generation settings, and the tokenizer."""
        ids = set(config.eos_token_ids)
        settings = self.folder / "generation_config.json"
        generation = token_ids(read_json(settings).get("eos_token_id"))
        if not all(map(is_token_id, generation)):
            raise StoreError(f"{settings}: eos_token_id must be a token id, or a list of them.")
        ids.update(generation)
        if self.special.get("eos_token"):
            ids.update(token_ids(self.tokenizer.token_to_id(self.special["eos_token"])))
        if not any(token < config.vocab_size for token in ids):
            raise UsageError(
                f"{self.folder} names no end-of-turn token (eos_token in tokenizer_config.json)."
            )
        return frozenset(ids)


def _covered_length(messages: Sequence[ChatMessage], covered: int) -> int | None:
    """Return the length of the covered messages, system messages included; None if no message follows them.

    The last covered message is the assistant's: system messages after it are not in its ids.
    """
    spoken = [place for place, message in enumerate(messages) if message["role"] != "system"]
    if covered > len(spoken):
        return None
    end = spoken[covered - 1] + 1 if covered else next(iter(spoken), 0)
    return end if end < len(messages) else None


def _pictures_of(folder: Path, config: DecoderConfig) -> ConversationPictures | None:
    if not config.reads_pictures:
        return None
    from hud.engine.pictures.processor import picture_processor  # Loads transformers.

    processor = picture_processor(folder)
    return None if processor is None else ConversationPictures(processor)
