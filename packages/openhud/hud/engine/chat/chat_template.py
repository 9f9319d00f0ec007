"""The Jinja template of a model folder, compiled: messages in, text out, with the template's own text marked as such.

Templates run with the conventions of Hugging Face's `apply_chat_template`, and render the same text.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from datetime import datetime
from functools import reduce
from pathlib import Path
from time import thread_time
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from markupsafe import Markup, escape

from hud.engine.chat.reasoning_effort import reasoning_switch
from hud.engine.chat.template_text import SUMMED, TemplateText, joined
from hud.errors import StoreError, UsageError

RENDER_SECONDS = 10.0
"""Processor time of a rendering."""
_DEADLINE = "own_deadline"
"""Variable of a rendering: its end, in seconds of its thread's processor time."""


class ChatTemplate:
    """One compiled template."""

    def __init__(self, text: str, folder: Path) -> None:
        self.text = text
        self.folder = folder
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters.update(
            tojson=_tojson, join=_join, own_sum=_sum, own_text=_text, own_loop=_loop
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            parsed = environment.parse(text)
            self.reasoning = reasoning_switch(parsed, folder)
            self._template = environment.from_string(_Literals(environment).visit(parsed))
        except jinja2.TemplateSyntaxError as error:
            raise StoreError(
                f"The chat template of {folder}, line {error.lineno}: {error.message}."
            ) from error

    def render(self, **variables: Any) -> TemplateText:
        """Return the rendered text. Raises `UsageError` for any exception of the template."""
        try:
            text = self._template.render({**variables, _DEADLINE: thread_time() + RENDER_SECONDS})
        except Exception as error:  # The template is the model's code: it may raise anything.
            reason = str(error) or type(error).__name__
            raise UsageError(
                f"The chat template of {self.folder} refused the conversation: {reason.rstrip('.')}."
            ) from error
        assert isinstance(text, TemplateText)
        return text


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox of templates, which are untrusted: they come with downloaded weights."""

    concat = staticmethod(joined)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        _check_time(__context)
        return super().call(__context, __obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `message.role` as jinja2 does, without its first attempt at an attribute, whose exception is slow."""
        if type(obj) is not dict or hasattr(dict, attribute):
            return super().getattr(obj, attribute)
        if attribute in obj:
            return obj[attribute]
        return self.undefined(obj=obj, name=attribute)


class _Literals(NodeTransformer):
    """AST transformer: literal text becomes `TemplateText`, and concatenations preserve it.

    Keys and compared strings stay plain strings.
    """

    def __init__(self, environment: jinja2.Environment) -> None:
        self.environment = environment
        self._count = 0

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return self._literal(node.data, node)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        # Not Markup, the result of `'...' | safe`.
        return self._literal(node.value, node) if type(node.value) is str else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        node.node = self.visit(node.node)
        if not isinstance(node.arg, nodes.Const):
            node.arg = self.visit(node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        sides: list[nodes.Compare | nodes.Operand] = [node, *node.ops]
        for side in sides:
            if not isinstance(side.expr, nodes.Const):
                side.expr = self.visit(side.expr)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = self._placed(nodes.Filter(node.iter, "own_loop", [], [], None, None), node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        return self._filter([self.visit(item) for item in node.nodes], "own_text", node)

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        # `a + b + c` at once: separate sums would copy the text repeatedly.
        items: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            items.append(self.visit(left.right))
            left = left.left
        items.append(self.visit(left))
        return self._filter(items[::-1], "own_sum", node)

    def _literal(self, text: str, node: nodes.Node) -> nodes.Node:
        name = f"own_{self._count}"
        self._count += 1
        setattr(self.environment, name, TemplateText.literal(text))
        return self._placed(nodes.EnvironmentAttribute(name), node)

    def _filter(self, items: list[nodes.Expr], name: str, node: nodes.Node) -> nodes.Node:
        listed = self._placed(nodes.List(items), node)
        return self._placed(nodes.Filter(listed, name, [], [], None, None), node)

    def _placed(self, made: nodes.Node, node: nodes.Node) -> nodes.Node:
        return made.set_lineno(node.lineno).set_environment(self.environment)


class _Generation(Extension):
    """`{% generation %}`: templates' mark of the assistant's text, without effect here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _sum(items: list[Any]) -> Any:
    """Return `a + b + c`. Markup among them (`x | safe`) escapes the others, as in `markupsafe`."""
    if all(type(item) in SUMMED for item in items):
        return joined(items)
    if all(isinstance(item, str) for item in items):
        return joined(item if isinstance(item, Markup) else _escaped(item) for item in items)
    return reduce(operator.add, items)


def _escaped(text: str) -> str:
    if not isinstance(text, TemplateText):
        return str(escape(text))
    pieces, at = [], 0
    for start, end in text.own:
        own = TemplateText.literal(str(escape(str.__str__(text[start:end]))))
        pieces += [str(escape(str.__str__(text[at:start]))), own]
        at = end
    return joined([*pieces, str(escape(str.__str__(text[at:])))])


def _text(items: list[Any]) -> str:
    """Return `a ~ b ~ c`."""
    return joined(map(str, items))


@jinja2.pass_context
def _loop(context: Context, items: Any) -> Any:
    """Return the items of a loop that begins."""
    _check_time(context)
    return items


def _check_time(context: Context) -> None:
    """Raise `TemplateError` after the time of a rendering, which loops in loops and macros that call themselves use up."""
    if thread_time() > context.parent[_DEADLINE]:
        raise jinja2.TemplateError(f"it took longer than {RENDER_SECONDS:g} s")


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment,
    value: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return TemplateText.join(d if isinstance(d, TemplateText) else TemplateText(d), map(str, value))


def _tojson(
    value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
