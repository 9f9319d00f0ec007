"""The Jinja template of a model folder, compiled: messages in, text out, with the template's own text marked as such.

Templates run with the conventions of Hugging Face's `apply_chat_template`, and render the same text.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from markupsafe import Markup, escape

from hud.engine.chat.reasoning_effort import ReasoningSwitch, reasoning_switch
from hud.engine.chat.template_limits import (
    WITHOUT,
    OpaqueNamespace,
    SlowTemplateError,
    begin,
    bounded_call,
    bounded_filter,
    bounded_result,
    bounded_test,
    charge,
    multiplied,
    nested,
    tick,
)
from hud.engine.chat.template_text import SUMMED, TemplateText, joined
from hud.errors import StoreError, UsageError

RENDER_SECONDS = 10.0
"""Processor time of a rendering."""
LONGEST_SOURCE = 1 << 18
"""Longest template in characters; published ones have up to 30,000."""
_MOST_COMPILED = 32
_LONGEST_REASON = 1000
_LONGEST_PATTERN = 100
_LARGEST_INDENT = 32


class ChatTemplate:
    """One compiled template."""

    def __init__(self, text: str, folder: Path) -> None:
        self.text = text
        self.folder = folder
        if len(text) > LONGEST_SOURCE:
            raise StoreError(
                f"The chat template of {folder} has {len(text):,} characters; {LONGEST_SOURCE:,} are the most."
            )
        try:
            begin(RENDER_SECONDS)
            self._template, switch = _compiled(text)
        except jinja2.TemplateSyntaxError as error:
            raise StoreError(
                f"The chat template of {folder}, line {error.lineno}: {error.message}."
            ) from error
        except Exception as error:  # Nesting that Python or jinja2 cannot compile.
            raise StoreError(
                f"The chat template of {folder} cannot be compiled: {_reason(error)}."
            ) from error
        self.reasoning = replace(switch, folder=folder)

    def render(self, **variables: Any) -> TemplateText:
        """Return the rendered text. Raises `UsageError` for any exception of the template, `SlowTemplateError` beyond `at_most`."""
        try:
            begin(RENDER_SECONDS)
            text = self._template.render(variables)
        except SlowTemplateError:
            raise
        except Exception as error:  # The template is the model's code: it may raise anything.
            raise UsageError(
                f"The chat template of {self.folder} refused the conversation: {_reason(error)}."
            ) from error
        assert isinstance(text, TemplateText)
        return text


@lru_cache(maxsize=_MOST_COMPILED)
def _compiled(text: str) -> tuple[jinja2.Template, ReasoningSwitch]:
    """Compile a template, which takes 0.1 s for a long one: checkpoints and forks of a model share its result."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    parsed = environment.parse(text)
    switch = reasoning_switch(parsed, Path())
    return environment.from_string(_Literals(environment).visit(parsed)), switch


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox of templates, which are untrusted: they come with downloaded weights."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters = {
            name: bounded_filter(function, name)
            for name, function in self.filters.items()
            if name not in WITHOUT
        }
        self.filters.update(tojson=_tojson, join=_join)
        self.filters.update(own_sum=_sum, own_text=_text, own_tick=_tick, own_nested=nested)
        tests: dict[str, Any] = self.tests
        self.tests = {name: bounded_test(function) for name, function in tests.items()}
        del self.globals["lipsum"]
        self.globals.update(
            raise_exception=_refuse, strftime_now=_strftime_now, namespace=OpaqueNamespace
        )

    @staticmethod
    def concat(pieces: Iterable[str]) -> TemplateText:
        pieces = list(pieces)
        charge(sum(map(len, pieces)))
        return joined(pieces)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        args = bounded_call(__obj, args, kwargs)
        return bounded_result(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        multiplied(operator, left, right)
        return super().call_binop(context, operator, left, right)

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
        outputs = sum(len(output.nodes) for output in node.find_all(nodes.Output))
        self.generic_visit(node)
        count = self._placed(nodes.Const(1 + outputs), node)
        counted = self._placed(nodes.Filter(count, "own_tick", [], [], None, None), node)
        node.body.insert(0, self._placed(nodes.ExprStmt(counted), node))
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._nested(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._nested(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._nested(node) if node.ctx == "load" else node

    def _nested(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return self._placed(nodes.Filter(node, "own_nested", [], [], None, None), node)

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
    if all(isinstance(item, str) for item in items):
        charge(sum(map(len, items)))
        if all(type(item) in SUMMED for item in items):
            return joined(items)
        return joined(item if isinstance(item, Markup) else _escaped(item) for item in items)
    return bounded_result(reduce(operator.add, items))


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
    texts = list(map(str, items))
    charge(sum(map(len, texts)))
    return joined(texts)


@jinja2.pass_context
def _tick(_: Context, outputs: int) -> None:
    """Count an iteration of a loop. The context keeps jinja2 from computing it once, as a constant."""
    tick(outputs)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment,
    value: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    texts = list(map(str, value))
    charge(len(d) * len(texts) + sum(map(len, texts)))
    return TemplateText.join(d if isinstance(d, TemplateText) else TemplateText(d), texts)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    long = [text for text in separators or () if len(text) > _LARGEST_INDENT]
    if long or (indent is not None and not 0 <= int(indent) <= _LARGEST_INDENT):
        raise jinja2.TemplateError("it indents JSON too far")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    charge(len(text))
    return text


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern[:_LONGEST_PATTERN])


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:_LONGEST_REASON].rstrip(".")
