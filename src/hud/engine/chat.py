"""The chat format of a model folder: its own tokenizer and its own Jinja template.

Promise kept here: a later turn's prompt is the earlier turn's ids, unchanged, plus the rendering of what came
after. Text that was sampled is never tokenized again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from hud.engine.config import DecoderConfig
from hud.engine.reasoning import ReasoningSwitch, reasoning_switch
from hud.engine.toolcalls import Parsed, format_named, format_of_template, parse_output
from hud.errors import NotFoundError, StoreError, UsageError
from hud.trace import ChatMessage, Continuation, ToolSpec


class ChatFormat:
    """How one model's conversations become token ids, and its output a message."""

    def __init__(
        self, folder: Path, config: DecoderConfig, *, tool_call_parser: str | None = None
    ) -> None:
        """`tool_call_parser` names a format of `hud.engine.toolcalls`; None: the one that the chat template writes."""
        self.folder = folder
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception
            if not (folder / "tokenizer.json").exists():
                raise NotFoundError(f"{folder} has no tokenizer.json.") from None
            raise StoreError(f"{folder / 'tokenizer.json'} is damaged: {error}.") from error
        settings = _read_json(folder / "tokenizer_config.json")
        self.special = {
            name: _token_text(settings.get(name))
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        template = _template_text(folder, settings)
        self.template, self.reasoning = _compile(template, folder)
        self.tool_format = (
            format_of_template(template)
            if tool_call_parser is None
            else format_named(tool_call_parser)
        )
        self.stop_ids = self._stop_ids(config)
        # The runs of a group begin with the same prompt, and tools often say the same.
        self._encoded = lru_cache(maxsize=64)(self._encode)
        ends = self.special["eos_token"]
        self.end_id: int = (
            min(self.stop_ids) if ends is None else self.tokenizer.token_to_id(ends) or 0
        )
        self.end_text: str = ends or self.tokenizer.id_to_token(self.end_id) or ""

    def render_text(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
        generation: bool = True,
    ) -> str:
        """Return the conversation as the template writes it; `effort` as `ReasoningSwitch` takes it."""
        shown = self._shown(messages)
        return self._render(shown, _schemas(tools), effort=effort, generation=generation)

    def _shown(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return [_for_template(message, self.tool_format.call_id) for message in messages]

    def _render(
        self,
        shown: list[ChatMessage],
        schemas: list[dict[str, Any]],
        *,
        effort: str | None,
        generation: bool = True,
    ) -> str:
        try:
            text: str = self.template.render(
                messages=shown,
                tools=schemas or None,
                documents=None,
                add_generation_prompt=generation,
                **self.special,
                **self.reasoning.variables(effort),
            )
            return text
        except Exception as error:  # The template is code of the model's: it may raise anything.
            reason = str(error) or type(error).__name__
            raise UsageError(
                f"The chat template of {self.folder} refused the conversation: {reason.rstrip('.')}."
            ) from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
    ) -> list[int]:
        """Return the prompt ids of a conversation, ready for the assistant's turn."""
        return self.encode(self.render_text(messages, tools, effort=effort))

    def extend(
        self,
        continuation: Continuation,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
    ) -> list[int] | None:
        """Return the prompt that begins with the continuation's ids and adds what they do not cover.

        None where the template does not keep its own prefix: the rendering of the covered messages is not the
        beginning of the rendering of all of them.
        """
        system = sum(message["role"] == "system" for message in messages)
        covered = continuation.covered + system
        if covered >= len(messages):
            return None
        shown, schemas = self._shown(messages), _schemas(tools)
        before = self._render(shown[:covered], schemas, effort=effort, generation=False)
        whole = self._render(shown, schemas, effort=effort)
        end = before.rfind(self.end_text)
        if end < 0 or not self.end_text or not whole.startswith(before):
            return None
        # What the template writes behind the end of the covered turn belongs to the next prompt.
        added = whole[end + len(self.end_text) :]
        ids = list(continuation.token_ids)
        if not ids or ids[-1] not in self.stop_ids:
            ids.append(self.end_id)  # The turn was cut at its length.
        return ids + self.encode(added)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text; special tokens in it are themselves."""
        return list(self._encoded(text))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without the token that ended the turn."""
        kept = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        text: str = self.tokenizer.decode(kept, skip_special_tokens=False)
        return text

    def parse(
        self, ids: Sequence[int], tools: Sequence[ToolSpec], *, opened: bool = False
    ) -> Parsed:
        """Return what sampled ids say; `opened`: their prompt opened the model's reasoning."""
        return parse_output(self.decode(ids), self.tool_format, tools, opened=opened)

    def opens_reasoning(self, prompt: Sequence[int]) -> bool:
        """True where a prompt ends inside reasoning: some templates begin it for the model."""
        tail: str = self.tokenizer.decode(list(prompt[-8:]), skip_special_tokens=False)
        return tail.rstrip().endswith(self.tool_format.thinking[0])

    def _stop_ids(self, config: DecoderConfig) -> frozenset[int]:
        """Return every token that ends a turn: of the configuration, its generation settings, and the tokenizer."""
        found = set(config.eos_token_ids)
        generation = _read_json(self.folder / "generation_config.json").get("eos_token_id")
        found.update(
            generation
            if isinstance(generation, list)
            else []
            if generation is None
            else [generation]
        )
        if self.special["eos_token"]:
            token = self.tokenizer.token_to_id(self.special["eos_token"])
            found.update([] if token is None else [token])
        if not found:
            raise UsageError(
                f"{self.folder} names no end-of-turn token (eos_token in tokenizer_config.json)."
            )
        return frozenset(found)


def _schemas(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools as templates expect them."""
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
    """Return a message as templates expect it: tool arguments as objects, text parts as one text, ids of their form."""
    shown = dict(message)
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
        # A call that was malformed is shown as it was written.
        with contextlib.suppress(ValueError):
            function["arguments"] = json.loads(function["arguments"])
    shown = {**call, "function": function}
    if isinstance(call.get("id"), str):
        shown["id"] = call_id(call["id"])
    return shown


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    return values


def _token_text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, dict) else value


def _template_text(folder: Path, settings: dict[str, Any]) -> str:
    beside = folder / "chat_template.jinja"
    if beside.exists():
        return beside.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    if not template:
        raise UsageError(
            f"{folder} has no chat template (chat_template.jinja, or in tokenizer_config.json)."
        )
    return str(template)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Where templates are run: one comes with somebody's weights, and must not reach into this process."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `message.role` as jinja2 does, which first asks the dictionary for an attribute and hears an exception."""
        if type(obj) is not dict or hasattr(dict, attribute):
            return super().getattr(obj, attribute)
        if attribute in obj:
            return obj[attribute]
        return self.undefined(obj=obj, name=attribute)


class _Generation(Extension):
    """`{% generation %}`: templates mark the assistant's text with it; here it is only passed through."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(text: str, folder: Path) -> tuple[jinja2.Template, ReasoningSwitch]:
    """Compile a chat template under the conventions of Hugging Face's."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    try:
        return environment.from_string(text), reasoning_switch(environment.parse(text), folder)
    except jinja2.TemplateSyntaxError as error:
        raise StoreError(
            f"The chat template of {folder}, line {error.lineno}: {error.message}."
        ) from error


def _tojson(
    value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
