"""Templates come with downloaded weights: none holds the thread that renders it, and none reaches what it was not given."""

from pathlib import Path

import pytest

from hud.engine.chat import chat_template
from hud.engine.chat.chat_template import ChatTemplate
from hud.errors import UsageError

MESSAGES = [{"role": "user", "content": "hi"}]
FOR_EVER = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n }}{% endmacro %}{{ m(40) }}",
    "{% for n in [40] recursive %}{{ loop([n - 1]) ~ loop([n - 1]) if n }}{% endfor %}",
]
OUT = [
    "{{ ('{0.__class__.__mro__}' | attr('format'))(1) }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ 'x' | tojson(cls=namespace, encode='{0.__class__}'.format) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ [messages] | join(attribute='__class__') }}",
    "{{ messages.append(1) }}",
    "{% include '/etc/passwd' %}",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", FOR_EVER)
def test_a_template_that_never_ends_is_given_up(text, monkeypatch):
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.2)
    with pytest.raises(UsageError, match="longer than"):
        ChatTemplate(text, Path("model")).render(messages=MESSAGES)


@pytest.mark.parametrize("text", OUT)
def test_a_template_reaches_nothing_but_its_variables(text):
    try:
        said = str(ChatTemplate(text, Path("model")).render(messages=MESSAGES))
    except UsageError:
        said = ""
    assert said == ""


def test_loops_keep_what_they_know_of_themselves():
    text = (
        "{% for k, v in pairs.items() %}{{ loop.index }}/{{ loop.length }} {{ k }}={{ v }}"
        "{% if not loop.last %}, {% endif %}{% endfor %}"
    )
    said = ChatTemplate(text, Path("model")).render(pairs={"a": 1, "b": 2})
    assert str(said) == "1/2 a=1, 2/2 b=2"
