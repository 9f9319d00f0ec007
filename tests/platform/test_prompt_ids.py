"""One model, one prompt: the same messages and tools are the same ids in every path.

Paths: the embedded policy, the gateway's four chat dialects, the renderer of supervised data, and Hugging Face's
`apply_chat_template`. Templates: those that models are published with. `HYPOTHESIS_PROFILE=explore` draws 1,000
conversations for each.
"""

import asyncio
import json
import shutil
from types import SimpleNamespace

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from tests.engine.conversations import Talker, hugging_face_messages
from tests.engine.published import PUBLISHED, published_folder, published_format
from tests.platform import prompt_bodies
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving
from transformers import AutoTokenizer

from hud.engine.policy import PolicyChatModel
from hud.errors import UsageError
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.fields import Fields
from hud.trace import Continuation, SamplingParams
from hud_integrations.anthropic.codec import AnthropicCodec
from hud_integrations.gemini.codec import GeminiCodec
from hud_integrations.openai.codec import ResponsesCodec
from hud_platform.gateway.chat_formats import Format
from hud_platform.gateway.detokenizing import Vocabulary
from hud_platform.gateway.local import LocalModel, prompts_of
from hud_platform.training.supervised_rendering import render_conversation

DIALECTS = {
    "chat": (ChatCodec(), prompt_bodies.chat_body),
    "responses": (ResponsesCodec(), prompt_bodies.responses_body),
    "messages": (AnthropicCodec(), prompt_bodies.anthropic_body),
    "gemini": (GeminiCodec(), prompt_bodies.gemini_body),
}
SYSTEM_LAST = ("mistral-nemo",)
"""These show a system message in the last user message: later prompts would not extend earlier ones, so ours is in the first."""
EXAMPLES = max(12, hypothesis().max_examples if hypothesis().max_examples > 100 else 0)


@pytest.fixture(scope="module", params=PUBLISHED)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def theirs(name):
    """What `apply_chat_template` makes of a conversation; None where the template refuses it."""
    tokenizer = AutoTokenizer.from_pretrained(published_folder(name))

    def ids(messages, tools):
        declared = [{"type": "function", "function": tool.function()} for tool in tools]
        try:
            return tokenizer.apply_chat_template(
                hugging_face_messages(messages),
                tools=declared or None,
                add_generation_prompt=True,
                return_dict=False,
            )
        except Exception:  # A template may raise anything.
            return None

    return ids


class Recorder:
    """A policy that draws nothing and keeps the prompt that it was given."""

    system_prompt = None

    def __init__(self, chat):
        self.chat = chat

    async def sample(self, prompt, params, *, pictures=(), stopped=None):
        self.prompt = prompt
        raise asyncio.CancelledError


def embedded(chat, messages, tools):
    """Return the prompt that an agent's model in this process draws from."""
    policy = Recorder(chat)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(PolicyChatModel("m", policy).complete(messages, tools, SamplingParams()))
    return policy.prompt


def through_gateway(chat, dialect, messages, tools):
    """Return the prompt of a request that came over the wire."""
    reader, body = DIALECTS[dialect]
    sent = json.dumps(body(messages, tools))
    request = reader.read(Fields(orjson.loads(sent)))
    model = LocalModel(
        SimpleNamespace(slug="tiny"), None, Format(chat, Vocabulary(chat.tokenizer), 4096)
    )
    (prompt,) = asyncio.run(prompts_of(model, request))
    return prompt.ids


def drops(chat, messages, tools):
    """Return whether the template itself drops tools, calls or results, which are then texts of ours."""
    calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    return bool(tools and not chat.shows_tools) or (calls and not chat.shows_calls)


def rendered_by_us(chat, messages, tools):
    """Return the prompt; None where the template refuses it in every order of messages."""
    try:
        return chat.render(messages, tools)
    except UsageError as refusal:
        if "refused the conversation" in str(refusal):
            return None
        raise


@pytest.mark.slow
@hypothesis(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32))
def test_one_conversation_is_one_prompt_in_every_path(name, theirs, seed):
    messages, tools = Talker(seed).conversation()
    chat = published_format(name)
    moved = name in SYSTEM_LAST and messages[0]["role"] == "system"
    rewritten = moved or drops(chat, messages, tools)
    expected = None if rewritten else theirs(messages, tools)
    if expected is None:  # In another order of messages, or refused by us, too.
        expected = rendered_by_us(chat, messages, tools)
        if expected is None:
            return
    assert embedded(chat, messages, tools) == expected
    for dialect in DIALECTS:
        assert through_gateway(chat, dialect, messages, tools) == expected, dialect


UNRENDERED = ("hermes3", "mistral-nemo", "glm-4.6", "gpt-oss")
"""These write an assistant's turn differently from how they ask for one: no supervised data is made with them."""


@pytest.fixture
def rendered(name):
    if name in UNRENDERED:
        pytest.skip("The template cannot make supervised data.")
    return published_format(name)


@hypothesis(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_prompts_of_supervised_data_are_those_of_sampling(rendered, theirs, seed):
    messages, tools = Talker(seed).conversation()
    messages.append({"role": "assistant", "content": "Done."})
    rewritten = drops(rendered, messages, tools)
    assume(rewritten or theirs(messages, tools) is not None)
    expected = rendered.render if rewritten else theirs
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    covered, system = None, messages[0]["role"] == "system"
    samples = render_conversation(rendered, messages, tools)
    for place, sample in zip(turns, samples, strict=True):
        prompt, asked = sample["prompt_token_ids"], messages[:place]
        extended = None if covered is None else rendered.extend(covered, asked, tools)
        assert prompt == (extended or expected(asked, tools))
        covered = Continuation(prompt + sample["output_token_ids"], place + 1 - system)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server whose model has Qwen3's template and tokenizer, and the engine that is asked behind it."""
    app = make_platform(tmp_path_factory.mktemp("home"))
    platform = app.state.parts
    folder = platform.registry.model("tiny").folder
    for path in published_folder("qwen3").iterdir():
        shutil.copyfile(path, folder / path.name)
    chat = published_format("qwen3")
    engine = platform.__dict__["engine"] = ScriptedEngine(chat.tokenizer, "done", end="<|im_end|>")
    with serving(app) as url, httpx.Client(base_url=url) as client:
        yield client, engine
    platform.__dict__.pop("engine")
    platform.close()


ROUTES = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": "/v1beta/models/tiny:generateContent",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_server_is_asked_with_the_ids_of_the_embedded_policy(served, dialect):
    client, engine = served
    messages, tools = Talker(12).conversation(turns=2)
    assert tools
    assert any(message.get("tool_calls") for message in messages)
    body = DIALECTS[dialect][1](messages, tools)
    answer = client.post(ROUTES[dialect], json=body)
    assert answer.status_code == 200, answer.text
    assert engine.asked[-1][2].prompt == embedded(published_format("qwen3"), messages, tools)


def test_a_raw_prompt_of_completions_may_spell_every_token(served):
    client, engine = served
    body = {"model": "tiny", "prompt": "<|im_start|>user\nhi<|im_end|>", "max_tokens": 4}
    assert client.post("/v1/completions", json=body).status_code == 200
    chat = published_format("qwen3")
    start, end = (chat.tokenizer.token_to_id(f"<|im_{where}|>") for where in ("start", "end"))
    prompt = engine.asked[-1][2].prompt
    assert (prompt[0], prompt[-1]) == (start, end)
