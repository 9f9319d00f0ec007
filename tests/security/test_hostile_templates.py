"""Templates come with downloaded weights: none holds the thread that renders it, and none reaches what it was not given."""

import shutil
import threading
import tracemalloc
from pathlib import Path
from time import thread_time

import pytest
from tests.engine.tiny_policy import tiny_folder

from hud.engine.chat import chat_template
from hud.engine.chat.chat_template import ChatTemplate
from hud.errors import StoreError, UsageError
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.fields import Fields
from hud_platform.gateway.chat_formats import format_of
from hud_platform.gateway.local import LocalModel, prompts_of
from hud_platform.models import weight_sources

MESSAGES = [{"role": "user", "content": "hi"}]
FOR_EVER = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n }}{% endmacro %}{{ m(40) }}",
    "{% for n in [40] recursive %}{{ loop([n - 1]) ~ loop([n - 1]) if n }}{% endfor %}",
    "{% for a in range(99999) %}" + "{% set b = a %}" * 2000 + "{% endfor %}",
    "{{ range(99999) | select('in', range(99999) | reverse | list) | list | length }}",
    "{{ ([range(9999) | list] * 9999) | reject('eq', range(9999) | list) | first }}",
]
CALLS = (
    "{% macro a() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call a() %}" * 28
    + "x"
    + "{% endcall %}" * 28
)
LARGE = [
    "{{ 'a' * 10**9 }}",
    "{{ messages[0].content * 10**9 }}",
    "{{ ([1] * 10**9) | length }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000d}'.format(1) }}",
    "{{ '{:{}}'.format(1, '1000000000') }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ 'a'.expandtabs(10**9) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) | length }}",
    "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) | length }}",
    "{{ ('a' * 10**6).join(range(99999) | list) | length }}",
    "{{ range(99999) | join('a' * 10**6) | length }}",
    "{{ ('a' * 10**6).translate({97: 'b' * 10**6}) | length }}",
    "{{ ('a\n' * 10**6) | indent(10**6) | length }}",
    "{{ [[1]] | tojson(indent=10**9) }}",
    "{{ [1, 2] | tojson(separators=(',' * 10**6, ':')) }}",
    "{{ (5).to_bytes(10**9, 'big') | length }}",
    "{{ lipsum(n=10**6) }}",
    "{{ range(99999) | map('center', 10**6) | list | length }}",
    "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}{% set n = namespace(x='a') %}"
    "{% for i in range(40) %}{% set n.x = d(n.x) %}{% endfor %}",
    "{% for a in range(99999) %}" + "{{ a }}" * 2000 + "{% endfor %}",
]
LONG = [
    "{{ 10**1000000000 }}",
    "{{ 1 | round(1000000000, 'ceil') }}",
    "{% set n = namespace(x=99) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ ('a' * 10**6).strip('b' * 10**6 ~ 'a') }}",
    "{{ ('a' * 10**7).encode('punycode') }}",
    "{{ ('<!---->' * 10**6) | striptags }}",
    "{{ range(99999) | map('string') | map('list') | sum(start=[]) }}",
    # Two lists that are equal, each of which holds another twice, and so on: each comparison doubles.
    "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"
    "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
    "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}{{ {n.x: 1} }}",
    "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = {}.fromkeys('ab', n.x) %}{% endfor %}{{ n.x }}",
]
UNCOMPILED = [
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{% if 1 %}" * 300 + "{% endif %}" * 300,
    "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "{{ " + "not " * 20_000 + "1 }}",
    "{{" * 50_000,
    "a" * 300_000,
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


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", FOR_EVER)
def test_a_template_that_never_ends_is_given_up(text, monkeypatch):
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.2)
    with pytest.raises(UsageError, match="longer than"):
        ChatTemplate(text, Path("model")).render(messages=MESSAGES)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", [*LARGE, *LONG])
def test_a_value_that_is_too_large_is_refused_before_it_is_made(text):
    tracemalloc.start()
    try:
        with pytest.raises((UsageError, StoreError)) as refused:
            ChatTemplate(text, Path("model")).render(messages=MESSAGES)
        assert "MemoryError" not in str(refused.value)
        assert tracemalloc.get_traced_memory()[1] < 2 << 30
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", UNCOMPILED)
def test_a_source_that_cannot_be_compiled_is_refused(text):
    with pytest.raises(StoreError, match="chat template of model"):
        ChatTemplate(text, Path("model"))


def test_a_reason_is_shortened():
    with pytest.raises(UsageError) as refused:
        ChatTemplate("{{ raise_exception('a' * 10**7) }}", Path("model")).render(messages=MESSAGES)
    assert len(str(refused.value)) < 2000


def test_usual_operations_are_those_of_jinja2():
    text = (
        "{{ 2 ** 10 }} {{ 2.5 * 2 }} {{ 'ab' * 3 }} {{ '%05d' % 3 }} {{ '%s-%s' % ('a', 'b') }} {{ '%s' | format('a') }} "
        "{{ '{:>4}|{}'.format('a', 1000000) }} {{ 'x' | replace('x', 'yy') }} {{ 'a,b'.split(',') | join('-') }} "
        "{{ ' a ' | trim }} {{ [1, 2] | sum }} {{ {'a': [1]} | tojson(indent=1) }} {{ ['a'] + ['b'] }} {{ 123456789 | string }} "
        "{% for a, b in [(1, 2)] %}{{ a }}{{ b }}{% endfor %} {% set x, y = 1, 2 %}{{ x }}{{ y }} {{ x | default(99999999) }}"
    )
    rendered = str(ChatTemplate(text, Path("model")).render())
    assert rendered == (
        "1024 5.0 ababab 00003 a-b a    a|1000000 yy a-b a 3 {\n \"a\": [\n  1\n ]\n} ['a', 'b'] 123456789 12 12 1"
    )


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


async def test_a_template_that_takes_long_gets_a_thread_of_its_own(tmp_path, monkeypatch):
    """Short conversations are rendered on the event loop: each request of such a model stopped the server for 10 s."""
    folder = shutil.copytree(tiny_folder(), tmp_path / "endless")
    (folder / "chat_template.jinja").write_text(FOR_EVER[0])
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.8)
    form = format_of(folder)
    request = ChatCodec().read(Fields({"model": "endless", "messages": MESSAGES}))
    loop_thread, renderings = threading.get_ident(), []
    rendered = ChatTemplate.render

    def noted(template, **variables):
        began = thread_time()
        try:
            return rendered(template, **variables)
        finally:
            renderings.append((threading.get_ident() == loop_thread, thread_time() - began))

    monkeypatch.setattr(ChatTemplate, "render", noted)
    for _ in range(2):
        with pytest.raises(UsageError, match="refused the conversation"):
            await prompts_of(LocalModel(None, None, form), request)
    first, *others = renderings
    assert first[0]
    assert first[1] < 0.6
    assert [on_the_loop for on_the_loop, _ in others] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("text", [FOR_EVER[0], CALLS])
def test_a_template_that_never_ends_is_refused_when_its_model_is_added(tmp_path, monkeypatch, text):
    """Each of a dozen conversations that are tried took its ten seconds: adding such a model held a thread for minutes."""
    folder = shutil.copytree(tiny_folder(), tmp_path / "endless")
    (folder / "chat_template.jinja").write_text(text)
    monkeypatch.setattr(weight_sources, "TRIAL_SECONDS", 4.0)
    rendered, seconds = ChatTemplate.render, []

    def noted(template, **variables):
        began = thread_time()
        try:
            return rendered(template, **variables)
        finally:
            seconds.append(thread_time() - began)

    monkeypatch.setattr(ChatTemplate, "render", noted)
    with pytest.raises(UsageError, match=r"takes longer than 4 s .* another template"):
        weight_sources.check_folder(folder)
    assert sum(seconds) < 6


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('never') }}",
        "{{ absent.field.of_it }}",
        "{{ absent() }}",
        "{% for m in messages %}{{ m.content.absent.field }}{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ messages[7].content }}",
        "{{ 'a' * 10**9 }}",
        "{# nothing #}",
        "{% if messages | length > 9 %}x{% else %}{{ raise_exception('few') }}{% endif %}",
    ],
)
def test_a_template_that_renders_no_conversation_is_refused_when_its_model_is_added(tmp_path, text):
    folder = shutil.copytree(tiny_folder(), tmp_path / "mute")
    (folder / "chat_template.jinja").write_text(text)
    with pytest.raises(UsageError, match=r"another template") as refusal:
        weight_sources.check_folder(folder)
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}",
        "{% if messages | length < 3 %}{{ raise_exception('few') }}{% endif %}{{ messages[0].content }}",
    ],
)
def test_a_template_that_renders_some_conversations_is_taken(tmp_path, text):
    folder = shutil.copytree(tiny_folder(), tmp_path / "choosy")
    (folder / "chat_template.jinja").write_text(text)
    weight_sources.check_folder(folder)
