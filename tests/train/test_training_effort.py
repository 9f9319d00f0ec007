"""Training tells the policy how much to reason, in rollouts and held-out scores alike."""

import pytest
from tests.engine.reasoning_template import worded_template
from tests.train.policy_home import policy_home

from hud import Environment
from hud.client import connect
from hud.engine.chat.chat_format import ChatFormat
from hud.errors import UsageError
from hud.eval import Taskset
from hud.train.config import TrainConfig, load_config
from hud.train.loop import train
from hud.train.rollouts.scoring import score

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
SMALL = {"group": 2, "tasks_per_step": 1, "max_tokens": 4, "max_turns": 1, "steps": 1}

env = Environment("vowels")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


TASKS = Taskset("words", [say(word=word) for word in ("red", "green")])
HELD_OUT = Taskset("more words", [say(word="blue")])


@pytest.fixture
async def home(tmp_path, monkeypatch):
    async with policy_home(tmp_path, monkeypatch, TEXTS, SIZES) as folder:
        yield folder


@pytest.fixture
def reasons(home):
    """Give the model a template that is told the effort; it writes it in a few tokens."""
    folder = connect().embedded.parts.registry.model("m").folder
    (folder / "chat_template.jinja").write_text(worded_template())


@pytest.fixture
def prompts(monkeypatch):
    """Every prompt that is rendered."""
    seen = []
    encode = ChatFormat.encode_rendered

    def listening(self, text):
        seen.append(text)
        return encode(self, text)

    monkeypatch.setattr(ChatFormat, "encode_rendered", listening)
    return seen


def test_the_effort_is_the_same_in_toml_on_the_command_line_and_where_it_is_kept(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "m"\nreasoning_effort = "low"\n')
    config = load_config(file, {})
    assert config.reasoning_effort == "low"
    assert load_config(file, {"reasoning_effort": "high"}).reasoning_effort == "high"
    assert TrainConfig(**config.model_dump(mode="json")) == config
    assert TrainConfig(model="m").reasoning_effort is None
    with pytest.raises(UsageError, match="reasoning_effort"):
        load_config(file, {"reasoning_effort": "banana"})


@pytest.mark.slow
async def test_rollouts_and_held_out_scores_are_played_with_the_effort(reasons, prompts):
    config = TrainConfig(model="m", reasoning_effort="low", zero_advantages=True, **SMALL)
    report = await train(config, tasks=TASKS, held_out=HELD_OUT)
    assert report.finished
    told = {
        word for word in ("red", "green", "blue") if any(f"say {word}" in one for one in prompts)
    }
    assert "blue" in told
    assert told & {"red", "green"}
    assert all("Reasoning: low" in one for one in prompts)


async def test_without_an_effort_the_template_has_its_own(reasons, prompts):
    await score(TrainConfig(model="m", **SMALL), held_out=HELD_OUT)
    assert prompts
    assert all("Reasoning: medium" in one for one in prompts)


async def test_a_model_that_cannot_be_told_is_refused_before_anything_is_played(home):
    config = TrainConfig(model="m", reasoning_effort="low", **SMALL)
    with pytest.raises(UsageError, match="reads neither enable_thinking nor reasoning_effort"):
        await train(config, tasks=TASKS)
    with pytest.raises(UsageError, match="reads neither"):
        await score(config, held_out=HELD_OUT)
    assert (await connect().get("/v2/training-runs"))["items"] == []
