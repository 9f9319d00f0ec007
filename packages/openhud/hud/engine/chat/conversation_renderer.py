"""Conversations as a chat template renders them: in the shapes that it reads, with texts in place of what it drops.

What a template drops or refuses (tools, calls and their results, pictures of results, plain texts, orders of messages) is found
by rendering probes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from hud.engine.chat.chat_template import ChatTemplate
from hud.engine.chat.conversation_pictures import ConversationPictures, has_pictures, template_parts
from hud.engine.chat.message_order import MessageOrder, in_order, probed_order
from hud.engine.chat.template_text import TemplateText
from hud.engine.chat.tokenizer_settings import DEFAULT, TOOL_USE
from hud.engine.chat.tool_calls.format import ToolFormat
from hud.engine.chat.tool_calls.writing import mark
from hud.engine.chat.tool_prompt import with_calls, with_pictures_below, with_tools
from hud.errors import UsageError
from hud.trace import ChatMessage, ToolSpec

_ROLES = {role: TemplateText.literal(role) for role in ("system", "user", "assistant", "tool")}
# No template but gpt-oss's has developers; there they are system messages, too.
_ROLES["developer"] = _ROLES["system"]


_PROBE, _PROBE_RESULT = "probe_of_shown_tools", "probe_of_shown_results"
_UNSEEN = mark("(An image, which this model cannot see.)")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class ConversationRenderer:
    """The templates of a folder, and what they render."""

    def __init__(
        self,
        templates: Mapping[str, ChatTemplate],
        tool_format: ToolFormat,
        special: Mapping[str, str],
        pictures: ConversationPictures | None,
    ) -> None:
        """`special`: texts of the special tokens, by name. `pictures`: those of the model's prompts; None: it reads text alone."""
        self._templates = templates
        self._format = tool_format
        self._own = {name: TemplateText.literal(token) for name, token in special.items()}
        self._pictures = pictures
        self._orders: dict[bool, MessageOrder] = {}

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        effort: str | None = None,
        generation: bool = True,
    ) -> TemplateText:
        """Return the conversation rendered by the template; `effort` as for `ReasoningSwitch`."""
        converted = self._converted(messages, tools)
        return self._render(converted, _schemas(tools), effort, generation=generation)

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
        call = _probe_call(self._format)
        id = call["id"]
        tool = ToolSpec(name="look", description="", parameters=_NO_PARAMETERS)
        talk: list[ChatMessage] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "name": _PROBE, "content": _PROBE_RESULT},
        ]
        shown = self._probed(talk, _schemas([tool]))
        return shown is not None and _PROBE in shown and _PROBE_RESULT in shown

    def order(self, *, tools: bool) -> MessageOrder:
        """Return the orders of messages that the template of conversations with tools renders, or that of those without."""
        if tools not in self._orders:
            spec = ToolSpec(name=_PROBE, description=_PROBE, parameters=_NO_PARAMETERS)
            schemas = _schemas([spec]) if tools else []
            self._orders[tools] = probed_order(
                lambda talk: self._probed(talk, schemas),
                _probe_call(self._format) if self.shows_calls else None,
            )
        return self._orders[tools]

    @cached_property
    def _no_tools(self) -> list[Any] | None:
        """Value of `tools` in a conversation without any: None, or a list for templates that refuse None."""
        template = template_for(self._templates, tools=False)
        talk = [{"role": _ROLES["user"], "content": "?"}]
        try:
            template.render(messages=talk, tools=None, add_generation_prompt=True, **self._own)
        except UsageError:
            return []
        return None

    def _probed(self, talk: list[ChatMessage], schemas: list[Any]) -> str | None:
        """Return a conversation as rendered without any rewriting; None if the template refuses it."""
        try:
            return self._render(self._in_parts(talk), schemas, None, generation=True)
        except UsageError:
            return None

    @cached_property
    def _parts_alone(self) -> bool:
        """True if the template renders lists of parts and drops texts: Idefics' and SmolVLM's."""
        if self._pictures is None:
            return False
        talk: list[ChatMessage] = [{"role": "user", "content": _PROBE}]
        with contextlib.suppress(UsageError):
            return _PROBE not in self._render(talk, [], None, generation=True)
        return True

    @cached_property
    def _shows_tool_pictures(self) -> bool:
        """True if the template writes pictures of tool results."""
        assert self._pictures is not None
        talk: list[ChatMessage] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [_probe_call(self._format)]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "image"}]},
        ]
        text = self._probed(talk, [])
        return isinstance(text, TemplateText) and self._pictures.count(text) == 1

    def _in_parts(self, talk: list[ChatMessage]) -> list[ChatMessage]:
        """Return messages with their texts as parts, where the template drops texts."""
        if not self._parts_alone:
            return talk
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message["content"], str)
            else message
            for message in talk
        ]

    def _converted(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
    ) -> list[ChatMessage]:
        """Return messages as the template renders them, with texts for tools and calls that it would drop."""
        form = self._format
        pictures = self._pictures is not None
        shown = [_for_template(message, form.call_id, pictures=pictures) for message in messages]
        if any(map(_is_call_or_result, shown)) and not self.shows_calls:
            shown = with_calls(shown, form)
        elif any(_has_image(message) for message in shown) and not self._shows_tool_pictures:
            shown = with_pictures_below(shown)
        order = self.order(tools=bool(tools))
        shown = in_order(shown, order)
        if tools and not self.shows_tools:
            shown = with_tools(shown, _schemas(tools), form, system=order.system)
        return self._in_parts(shown)

    def _render(
        self, shown: list[ChatMessage], schemas: list[Any], effort: str | None, *, generation: bool
    ) -> TemplateText:
        template = template_for(self._templates, tools=bool(schemas))
        return template.render(
            messages=shown,
            tools=schemas or self._no_tools,
            documents=None,
            add_generation_prompt=generation,
            **self._own,
            **template.reasoning.variables(effort),
        )


def template_for(templates: Mapping[str, ChatTemplate], *, tools: bool) -> ChatTemplate:
    """Return the template of conversations with tools, or of those without."""
    names = (TOOL_USE, DEFAULT) if tools else (DEFAULT, TOOL_USE)
    return next(templates[name] for name in names if name in templates)


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


def _probe_call(form: ToolFormat) -> dict[str, Any]:
    function = {"name": _PROBE, "arguments": {}}
    return {"id": form.call_id("call_1"), "type": "function", "function": function}


def _has_image(message: ChatMessage) -> bool:
    return message.get("role") == "tool" and isinstance(message.get("content"), list)


def _for_template(
    message: ChatMessage, call_id: Callable[[str], str], *, pictures: bool
) -> ChatMessage:
    """Return a message in the templates' format: tool arguments as objects, valid ids, and text parts as one text.

    With `pictures`, lists of parts stay lists.
    """
    shown = dict(message)
    if shown.get("role") in _ROLES:
        # Some templates build control tokens of it: '<|' + message.role + '|>'.
        shown["role"] = _ROLES[shown["role"]]
    if isinstance(shown.get("content"), list):
        if has_pictures(shown) and not pictures:
            if shown["role"] != "tool":
                raise UsageError("This model reads text only; the conversation holds an image.")
            # An agent cannot take a result back: it would be refused at every later turn.
            shown["content"] = list(map(_without_picture, shown["content"]))
        parts = template_parts(shown["content"])
        shown["content"] = parts if pictures else "\n".join(part["text"] for part in parts)
    if shown.get("content") is None:
        shown["content"] = ""
    if shown.get("tool_calls"):
        shown["tool_calls"] = [_with_object(call, call_id) for call in shown["tool_calls"]]
    if isinstance(shown.get("tool_call_id"), str):
        shown["tool_call_id"] = call_id(shown["tool_call_id"])
    if shown.get("reasoning_content") is not None:
        shown.setdefault("thinking", shown["reasoning_content"])  # gpt-oss reads it by this name.
    return shown


def _without_picture(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": _UNSEEN} if part["type"] == "image_url" else part


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
