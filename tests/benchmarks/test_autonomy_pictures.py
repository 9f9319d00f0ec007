"""`autonomy-10` is played and scored by a policy with a vision tower, and its screenshots are in the recorded samples."""

import json
import shutil

import pytest
from tests.engine.picture_folders import write_folder

from hud.agents import create_agent
from hud.benchmarks import benchmark
from hud.engine.policy import Policy, PolicyChatModel
from hud.eval import NullRecorder, Taskset
from hud.trace import ChatModel, Completion, ToolCall

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("chromium", "bwrap")),
        reason="needs Chromium and bubblewrap (scripts/setup-worlds)",
    ),
]
CONTEXT = 16_384
"""Positions for prompts whose tokens are bytes."""


class LooksFirst(ChatModel):
    """A random policy whose first two turns are written for it: screenshots, which random text never asks for."""

    name = "looks-first"

    def __init__(self, policy):
        self.policy = PolicyChatModel(self.name, policy)

    async def complete(self, messages, tools, params, *, continuation=None, trace_id=None):
        answered = sum(message["role"] == "tool" for message in messages)
        if answered < 2:
            call = ToolCall(
                id=f"call_{answered}", name="computer", arguments={"action": "screenshot"}
            )
            return Completion(tool_calls=[call], finish_reason="tool_calls")
        return await self.policy.complete(messages, tools, params, continuation=continuation)


@pytest.fixture
def policy(tmp_path):
    write_folder(tmp_path, "qwen3_vl")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["max_position_embeddings"] = CONTEXT
    path.write_text(json.dumps(config))
    policy = Policy.load(tmp_path)
    yield policy
    policy.close()


async def test_a_random_policy_ends_a_task_with_no_reward_and_its_screenshots_among_its_tokens(
    policy,
):
    tasks = benchmark("autonomy-10").tasks("held-out")
    task = next(task for task in tasks if task.slug.startswith("calendar-leave-"))
    agent = create_agent(LooksFirst(policy), completion_kwargs={"max_tokens": 8})
    job = await Taskset("autonomy", [task]).run(agent, recorder=NullRecorder())
    (run,) = job.runs
    assert run.error is None
    assert run.reward == 0
    samples = [step.sample for step in run.trace.steps if getattr(step, "sample", None) is not None]
    (sample,) = samples
    assert len(sample.pictures) == 2
    for picture in sample.pictures:
        shown = sample.prompt_token_ids[picture.start :][: picture.tokens]
        assert set(shown) <= policy.decoder.picture_tokens
        assert picture.file.startswith(b"\x89PNG")
    assert 0 < len(sample.output_token_ids) == len(sample.output_logprobs) <= 8
