"""The chat format of a model folder: its own tokenizer and its own Jinja template.

Guarantees: a later turn's prompt is the earlier turn's ids, unchanged, plus the rendering of the new messages; sampled
text is never tokenized again. Control tokens occur only where the template wrote them: text of users, tools, environments
and callers is plain text, also if it spells a control token.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.engine.chat.chat_template import ChatTemplate
from hud.engine.chat.prompt_tokens import PromptTokenizer
from hud.engine.chat.template_text import Span, TemplateText, joined
from hud.engine.chat.tokenizer_settings import (
    DEFAULT,
    TOOL_USE,
    chat_templates,
    read_json,
    special_tokens,
)
from hud.engine.chat.tokenizers.prompt_process import PromptProcess
from hud.engine.chat.tokenizers.tokenizer_file import load_tokenizer
from hud.engine.chat.tool_calls.format import Parsed, parse_output
from hud.engine.chat.tool_calls.formats import format_named, format_of_template
from hud.engine.chat.tool_prompt import with_calls, with_tools
from hud.engine.config import DecoderConfig, is_token_id, token_ids
from hud.errors import StoreError, UsageError
from hud.trace import ChatMessage, Continuation, ToolSpec

if TYPE_CHECKING:
    from hud.engine.chat.grammars import Grammars

_ROLES = {
    role: TemplateText.literal(role)
    for role in ("system", "developer", "user", "assistant", "tool")
}


_PROBE, _PROBE_RESULT = "probe_of_shown_tools", "probe_of_shown_results"
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class ChatFormat:
    """Conversion of a model's conversations to token ids, and of its output to messages."""

    def __init__(
        self, folder: Path, config: DecoderConfig, *, tool_call_parser: str | None = None
    ) -> None:
        """`tool_call_parser` names a format of `hud.engine.chat.tool_calls`; None: that of the chat template."""
        self.folder = folder
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
        self._own = {name: TemplateText.literal(token) for name, token in self.special.items()}
        self.stop_ids = self._stop_ids(config)
        texts = {self.tokenizer.id_to_token(token): token for token in sorted(self.stop_ids)}
        self._stops = {text: token for text, token in texts.items() if text}
        self._stop = re.compile("|".join(map(re.escape, self._stops)))
        self.end_id = self._end_id()

    def render_apart(self) -> None:
        """Have prompts made in a thread of this format's own: its template takes long, and other models need theirs."""
        if self.encoding_threads is None:
            self.encoding_threads = ThreadPoolExecutor(1, "template")

    def template(self, *, tools: bool) -> ChatTemplate:
        """Return the template of conversations with tools, or of those without."""
        names = (TOOL_USE, DEFAULT) if tools else (DEFAULT, TOOL_USE)
        return next(self._templates[name] for name in names if name in self._templates)

    def render_text(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
        generation: bool = True,
    ) -> TemplateText:
        """Return the conversation rendered by the template; `effort` as for `ReasoningSwitch`."""
        shown = self._shown(messages, tools)
        return self._render(shown, _schemas(tools), effort, generation=generation)

    @cached_property
    def grammars(self) -> Grammars:
        """Grammars over the loaded tokenizer. Raises `UsageError` without llguidance."""
        from hud.engine.chat.grammars import grammars_of  # Imports torch, which few callers need.

        return grammars_of(self.tokenizer, self.end_id)

    @cached_property
    def shows_tools(self) -> bool:
        """True if the template writes the tools it is given; False: they are written into its system prompt."""
        probe = ToolSpec(name=_PROBE, description=_PROBE, parameters=_NO_PARAMETERS)
        talk: list[ChatMessage] = [{"role": "user", "content": "?"}]
        shown = self._probed(talk, _schemas([probe]))
        # A template that refuses the probe is no template that drops it.
        return shown is None or _PROBE in shown

    @cached_property
    def shows_calls(self) -> bool:
        """True if the template writes tool calls and their results; False: they are written as texts."""
        id = self.tool_format.call_id("call_1")
        call = {"id": id, "type": "function", "function": {"name": _PROBE, "arguments": {}}}
        tool = ToolSpec(name="look", description="", parameters=_NO_PARAMETERS)
        talk: list[ChatMessage] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "name": _PROBE, "content": _PROBE_RESULT},
        ]
        shown = self._probed(talk, _schemas([tool]))
        return shown is not None and _PROBE in shown and _PROBE_RESULT in shown

    @cached_property
    def _shows_system(self) -> bool:
        talk: list[ChatMessage] = [
            {"role": "system", "content": _PROBE},
            {"role": "user", "content": "?"},
        ]
        shown = self._probed(talk, [])
        return shown is not None and _PROBE in shown

    def _probed(self, talk: list[ChatMessage], schemas: list[Any]) -> str | None:
        """Return a conversation as rendered without any rewriting; None if the template refuses it."""
        try:
            return self._render(talk, schemas, None, generation=True)
        except UsageError:
            return None

    def _shown(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
    ) -> list[ChatMessage]:
        """Return messages as the template renders them, with texts for tools and calls that it would drop."""
        form = self.tool_format
        shown = [_for_template(message, form.call_id) for message in messages]
        if any(map(_is_call_or_result, shown)) and not self.shows_calls:
            shown = with_calls(shown, form)
        if tools and not self.shows_tools:
            shown = with_tools(shown, _schemas(tools), form, system=self._shows_system)
        return shown

    def _render(
        self, shown: list[ChatMessage], schemas: list[Any], effort: str | None, *, generation: bool
    ) -> TemplateText:
        template = self.template(tools=bool(schemas))
        return template.render(
            messages=shown,
            tools=schemas or None,
            documents=None,
            add_generation_prompt=generation,
            **self._own,
            **template.reasoning.variables(effort),
        )

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
    ) -> list[int]:
        """Return the prompt ids of a conversation, ready for the assistant's turn."""
        return self.encode_rendered(self.render_text(messages, tools, effort=effort))

    def render_beginning(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
    ) -> list[int]:
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
        return self.encode_rendered(joined((prompt, last.get("content") or "")))

    def extend(
        self,
        continuation: Continuation,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
    ) -> list[int] | None:
        """Return the prompt: the continuation's ids, and the rendering of the messages that they do not cover.

        None if the template renders the covered messages differently with the new ones: it removes the reasoning of
        earlier turns, or moves the tools. Differences in the template's own text are ignored: Qwen3 writes an empty block
        of reasoning in the last turn only.
        """
        system = sum(message["role"] == "system" for message in messages)
        covered = continuation.covered + system
        if covered >= len(messages):
            return None
        schemas = _schemas(tools)
        answered = self._shown(messages[:covered], tools)
        before = self._render(answered, schemas, effort, generation=False)
        rendered = self._render(self._shown(messages, tools), schemas, effort, generation=True)
        start = self._covered_end(before, rendered)
        if start is None:
            return None
        # The rendering after the covered turn's end belongs to the next prompt.
        added = self.encode_rendered(rendered[start:])
        ids = list(continuation.token_ids)
        if not ids or ids[-1] not in self.stop_ids:
            return ids + added  # The turn reached its length limit.
        ends = added[:1] == ids[-1:] or self.turn_end(before) is not None
        return ids + added[1:] if ends else None

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
        text: str = self.tokenizer.decode(turn_ids, skip_special_tokens=False)
        return text

    def parse(
        self, ids: Sequence[int], tools: Sequence[ToolSpec], *, opened: bool = False
    ) -> Parsed:
        """Return the parsed turn of sampled ids; `opened`: their prompt opened the model's reasoning."""
        return parse_output(self.decode(ids), self.tool_format, tools, opened=opened)

    def opens_reasoning(self, prompt: Sequence[int]) -> bool:
        """Return True for a prompt that ends within reasoning: some templates open it."""
        tail: str = self.tokenizer.decode(list(prompt[-8:]), skip_special_tokens=False)
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
        if not ids:
            raise UsageError(
                f"{self.folder} names no end-of-turn token (eos_token in tokenizer_config.json)."
            )
        return frozenset(ids)


def _is_call_or_result(message: ChatMessage) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def _schemas(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools in the templates' format."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in tools
    ]


def _for_template(message: ChatMessage, call_id: Callable[[str], str]) -> ChatMessage:
    """Return a message in the templates' format: tool arguments as objects, text parts as one text, valid ids."""
    shown = dict(message)
    if shown.get("role") in _ROLES:
        # Some templates build control tokens of it: '<|' + message.role + '|>'.
        shown["role"] = _ROLES[shown["role"]]
    if isinstance(shown.get("content"), list):
        parts = shown["content"]
        if any(part.get("type") not in ("text", "input_text") for part in parts):
            raise UsageError("This model reads text only; the conversation holds an image.")
        shown["content"] = "\n".join(part["text"] for part in parts)
    if shown.get("content") is None:
        shown["content"] = ""
    if shown.get("tool_calls"):
        shown["tool_calls"] = [_with_object(call, call_id) for call in shown["tool_calls"]]
    if isinstance(shown.get("tool_call_id"), str):
        shown["tool_call_id"] = call_id(shown["tool_call_id"])
    if shown.get("reasoning_content") is not None:
        shown.setdefault("thinking", shown["reasoning_content"])  # gpt-oss reads it by this name.
    return shown


def _with_object(call: dict[str, Any], call_id: Callable[[str], str]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        # A malformed call is rendered unchanged, and so is one that is nested too deep.
        with contextlib.suppress(ValueError, RecursionError):
            function["arguments"] = json.loads(function["arguments"])
    shown = {**call, "function": function}
    if isinstance(call.get("id"), str):
        shown["id"] = call_id(call["id"])
    return shown
