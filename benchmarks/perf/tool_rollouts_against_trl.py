"""A GRPO step with tool calls against TRL's: 3 turns, each of 8 to 128 tokens, 8 prompts x 8 rollouts, two cores.

Random weights never call a tool by themselves, so that both sides are told what was said, and how long it was:

- **Lengths** of every turn of every rollout come from one seeded list. TRL draws with a logits processor that forbids
  the end token up to a row's length and forces it there (two writes into the logits a step, under a hundredth of it);
  ours is asked for that many tokens, and has no end token.
- **Calls**: the function that reads a turn is replaced on both sides by one that decodes the text and returns it with
  one call of `look_up`. So every turn is followed by a real tool call, whose result both render with the chat template
  and append to the ids: TRL in its own `_tool_call_loop`, ours in `ToolLoopAgent` over a recorded environment. TRL
  makes two of them a rollout, ours three, as the last turn's call is executed too.

Everything else is as in `grpo_against_trl.py`; the loss is compared on TRL's samples here too, tool results masked.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

import shapes
import torch
import trl.trainer.grpo_trainer
import trl_peer
from sizes import size
from transformers import LogitsProcessor, LogitsProcessorList
from trl import GRPOTrainer

from hud.agents.types import AgentConfig
from hud.engine.chat.tool_calls.format import Parsed
from hud.environment import Environment
from hud.eval import LocalRuntime, Taskset
from hud.trace import SamplingParams, ToolCall
from hud.trace.chat_model import ChatModel

TURNS, SHORTEST, LONGEST = 3, 8, 128
BAR = 4.0
MOST = TURNS * LONGEST + 128
QUESTIONS = shapes.incidents()[: trl_peer.PROMPTS]
RESULT = shapes.incidents()[100]
ARGUMENTS = {"key": "api-oslo"}

environment = Environment("incidents")


@environment.tool
async def look_up(key: str) -> str:
    """Look a service up."""
    return RESULT if key else ""


@environment.template()
async def question(number: int = 0):
    """Ask about one incident."""
    answer = yield QUESTIONS[number]
    yield trl_peer.reward_of(answer or "")


def lengths(number: int) -> list[list[int]]:
    """Return how many tokens each rollout draws in each turn of a step."""
    chosen = random.Random(number)
    rollouts = trl_peer.PROMPTS * trl_peer.GROUP
    return [[chosen.randint(SHORTEST, LONGEST) for _ in range(TURNS)] for _ in range(rollouts)]


class OfLength(ChatModel):
    """The policy, asked for as many tokens as the list says; a rollout is known by its trace."""

    def __init__(self, policy, number: int) -> None:
        self.name = "policy"
        self.model = policy.chat_model("policy")
        self.lengths = lengths(number)
        self.rows: dict[str, int] = {}

    async def complete(self, messages, tools, _params, *, continuation=None, trace_id=None):
        row = self.rows.setdefault(trace_id, len(self.rows))
        turn = sum(message["role"] == "assistant" for message in messages)
        params = SamplingParams(max_tokens=self.lengths[row][turn])
        return await self.model.complete(messages, tools, params, continuation=continuation)


def our_step(folder: Path) -> trl_peer.OurStep:
    """Return our side's step, with a reader that finds a call in every turn."""
    tasks = Taskset("incidents", [question(number=number) for number in range(len(QUESTIONS))])
    config = AgentConfig(model="policy", max_steps=TURNS, stop_on=frozenset())
    step = trl_peer.OurStep(folder, tasks, LocalRuntime(environment), config, OfLength)
    chat = step.policy.chat

    def parse(ids, _tools):
        call = ToolCall(id="call", name="look_up", arguments=ARGUMENTS)
        return Parsed(chat.decode(ids), tool_calls=[call])

    chat.parse = parse
    return step


class EndAtLength(LogitsProcessor):
    """Ends each row at its length, and not before."""

    def __init__(self, end: int) -> None:
        self.end = end

    def begin(self, wanted: list[int], prompt: int) -> None:
        """Take the lengths of one call of `generate`, whose prompts are padded to `prompt`."""
        self.last = torch.tensor(wanted) + prompt - 1

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        due = self.last <= ids.shape[1]
        ends = torch.where(due, 0.0, -torch.inf)
        scores = scores.masked_fill(due[:, None], -torch.inf)
        scores[:, self.end] = ends
        return scores


class OfLengthTrainer(GRPOTrainer):
    """TRL's trainer, whose turns are as long as the list says."""

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.processor = EndAtLength(self._tokenizer.eos_token_id)
        generate = self.model.generate

        def ended(**inputs):
            return generate(**inputs, logits_processor=LogitsProcessorList([self.processor]))

        self.model.generate = ended

    def _generate(self, prompts):
        self.turn = 0
        return super()._generate(prompts)

    def _generate_single_turn(self, prompt_ids, *rest, **named):
        of_step = lengths(trl_peer.ByTurns.round_of(self.state.global_step))
        self.processor.begin([row[self.turn] for row in of_step], max(map(len, prompt_ids)))
        self.turn += 1
        return super()._generate_single_turn(prompt_ids, *rest, **named)


def look_up_tool(key: str) -> str:
    """
    Look a service up.

    Args:
        key: The service.
    """
    return RESULT if key else ""


look_up_tool.__name__ = "look_up"


def parse_response(tokenizer, ids, prefix=None, tools=None):  # noqa: ARG001
    """Stand in for TRL's reader of a turn: its text, and a call."""
    call = {"type": "function", "function": {"name": "look_up", "arguments": dict(ARGUMENTS)}}
    return {"role": "assistant", "content": tokenizer.decode(ids), "tool_calls": [call]}


def peer(folder: Path, turns: trl_peer.ByTurns, rounds: int) -> GRPOTrainer:
    """Return TRL's side."""
    trl.trainer.grpo_trainer.parse_response = parse_response
    arguments = trl_peer.trl_arguments(
        folder,
        QUESTIONS,
        max_completion_length=MOST,
        max_tool_calling_iterations=TURNS - 1,
        max_steps=turns.steps(rounds),
    )
    # Its reader is replaced above; without one, TRL refuses a template that it does not know.
    arguments["processing_class"].response_template = {}
    return OfLengthTrainer(**arguments, tools=[look_up_tool], callbacks=[turns])


def check(ours: trl_peer.OurSide, theirs: GRPOTrainer) -> None:
    """Print how many tokens each side samples in a step; they must be alike."""
    payloads = ours.rollouts(0)
    mine = [[len(sample.output_token_ids) for sample in payload.samples] for payload in payloads]
    theirs.state.global_step = 0
    rows = [row for row in theirs.train_dataset for _ in range(trl_peer.GROUP)]
    inputs = theirs._generate_and_score_completions(rows)
    drawn = int((inputs["tool_mask"] * inputs["completion_mask"]).sum())
    wanted = sum(map(sum, lengths(0)))
    print(f"  sampled tokens of a step: wanted {wanted}, ours {sum(map(sum, mine))}, TRL {drawn}")
    assert sorted(mine) == sorted(lengths(0))
    assert drawn == wanted


def main(rounds: int) -> int:
    """Print both times, the ratio, and the gap between the losses; fail below the bars."""
    trl_peer.quiet()
    with tempfile.TemporaryDirectory() as name:
        os.environ["HUD_HOME"] = f"{name}/home"
        folder = Path(name) / "policy"
        shapes.create_policy(folder, shapes.MIDDLE)
        turns = trl_peer.ByTurns(partial(our_step, folder))
        theirs = peer(folder, turns, rounds)
        trl_peer.train(theirs)
        check(turns.ours[max(turns.ours)], theirs)
        turns.close()
        gaps = trl_peer.loss_gaps(theirs, folder)
        return trl_peer.report(turns, gaps, "GRPO step with tool calls", BAR)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=size(5, 1))
    sys.exit(main(parser.parse_args().rounds))
