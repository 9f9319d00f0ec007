"""How much a model reasons is told to its chat template, for the whole conversation, and only where it can be told."""

import shutil

import pytest
from tests.engine.reasoning_template import both_template, switched_template, worded_template
from tests.engine.tiny_policy import TOOLS, tiny_folder

from hud import Environment
from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import OpenAIChatConfig
from hud.client import disconnect
from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.policy import Policy
from hud.errors import UsageError
from hud.eval import Taskset
from hud.trace import AgentStep, Continuation, SamplingParams

env = Environment("items")


@env.template()
async def ask():
    yield "Which item?"
    yield 1.0


ASK = [{"role": "user", "content": "Which item?"}]


@pytest.fixture
def folder_with(tmp_path):
    def folder_with(template):
        folder = tmp_path / "model"
        shutil.copytree(tiny_folder(), folder)
        (folder / "chat_template.jinja").write_text(template)
        return folder

    return folder_with


@pytest.fixture
def chat_with(folder_with):
    def chat_with(template):
        folder = folder_with(template)
        return ChatFormat(folder, DecoderConfig.from_folder(folder))

    return chat_with


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_a_template_that_reads_the_word_is_told_the_word(chat_with, effort):
    chat = chat_with(worded_template())
    assert f"Reasoning: {effort}" in chat.render_text(ASK, TOOLS, effort=effort)
    assert chat.render_text(ASK, TOOLS) == chat.render_text(ASK, TOOLS, effort="medium")


def test_a_template_that_reads_the_switch_is_told_off_and_on(chat_with):
    chat = chat_with(switched_template())
    assert chat.render_text(ASK, [], effort="none").endswith("<think>\n\n</think>\n\n")
    for effort in ("low", "medium", "high"):
        assert chat.render(ASK, [], effort=effort) == chat.render(ASK, [])


def test_a_template_that_reads_both_is_told_both(chat_with):
    chat = chat_with(both_template())
    assert "Reasoning: high" in chat.render_text(ASK, [], effort="high")
    off = chat.render_text(ASK, [], effort="none")
    # It does not know the word "none".
    assert "Reasoning: medium" in off
    assert off.endswith("<think>\n\n</think>\n\n")


def test_a_template_that_knows_none_by_name_is_told_it(chat_with):
    chat = chat_with("{% if reasoning_effort == 'none' %}quick{% endif %}" + worded_template())
    assert chat.render_text(ASK, [], effort="none").startswith("quick")


@pytest.mark.parametrize("template", [worded_template(), both_template()])
def test_a_later_prompt_extends_the_ids_of_a_turn_with_its_effort(chat_with, template):
    chat = chat_with(template)
    first = chat.render(ASK, [], effort="low")
    assert first != chat.render(ASK, [])
    so_far = [*first, *chat.encode("item 3"), chat.end_id]
    talk = [*ASK, {"role": "assistant", "content": "item 3"}, {"role": "user", "content": "Sure?"}]
    later = chat.extend(Continuation(so_far, 2), talk, [], effort="low")
    assert later[: len(so_far)] == so_far
    assert later == chat.render(talk, [], effort="low")


def test_a_turn_after_reasoning_was_off_extends_its_ids_too(chat_with):
    chat = chat_with(switched_template())
    first = chat.render(ASK, [], effort="none")
    so_far = [*first, *chat.encode("item 3"), chat.end_id]
    talk = [*ASK, {"role": "assistant", "content": "item 3"}, {"role": "user", "content": "Sure?"}]
    later = chat.extend(Continuation(so_far, 2), talk, [], effort="none")
    assert later[: len(so_far)] == so_far
    assert chat.decode(later[len(so_far) :]).endswith("<think>\n\n</think>\n\n")


def test_a_template_that_reads_neither_refuses():
    chat = ChatFormat(tiny_folder(), DecoderConfig.from_folder(tiny_folder()))
    with pytest.raises(UsageError, match="reads neither enable_thinking nor reasoning_effort"):
        chat.render(ASK, [], effort="low")


def test_a_template_that_cannot_turn_reasoning_off_refuses_none(chat_with):
    chat = chat_with(worded_template())
    with pytest.raises(UsageError, match="cannot turn reasoning off"):
        chat.render(ASK, [], effort="none")


def test_an_unknown_effort_is_refused(chat_with):
    chat = chat_with(worded_template())
    with pytest.raises(UsageError, match="must be one of none, low, medium, high, not 'banana'"):
        chat.render(ASK, [], effort="banana")


def test_a_variable_that_the_template_sets_itself_is_not_one_it_reads(chat_with):
    chat = chat_with("{% set enable_thinking = true %}{{ enable_thinking }}" + worded_template())
    assert not chat.template(tools=False).reasoning.thinking
    assert chat.template(tools=False).reasoning.effort


async def test_every_turn_of_a_policy_is_asked_with_the_effort(folder_with):
    policy = Policy.load(folder_with(worded_template()))
    try:
        model = policy.chat_model("tiny")
        params = SamplingParams(max_tokens=4, seed=1, reasoning_effort="high")
        one = await model.complete(ASK, [], params)
        ids = [*one.sample.prompt_token_ids, *one.sample.output_token_ids]
        talk = [*ASK, {"role": "assistant", "content": "x"}, {"role": "user", "content": "Sure?"}]
        two = await model.complete(talk, [], params, continuation=Continuation(ids, 2))
        assert "Reasoning: high" in policy.chat.decode(one.sample.prompt_token_ids)
        assert two.extended
        assert two.sample.prompt_token_ids[: len(ids)] == ids
    finally:
        policy.close()


async def test_an_agent_plays_with_the_effort_of_its_sampling_parameters(
    folder_with, tmp_path, monkeypatch
):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    policy = Policy.load(folder_with(worded_template()))
    try:
        settings = {"max_tokens": 4, "reasoning_effort": "low"}
        config = OpenAIChatConfig(model="tiny", completion_kwargs=settings)
        agent = ToolLoopAgent(policy.chat_model("tiny"), config)
        job = await Taskset("one", [ask()]).run(agent)
    finally:
        policy.close()
        disconnect(tmp_path / "home")
    (run,) = job.runs
    turn = next(step for step in run.trace.steps if isinstance(step, AgentStep))
    assert "Reasoning: low" in policy.chat.decode(turn.sample.prompt_token_ids)
