"""A GRPO step against TRL's `GRPOTrainer`: 3.3M parameters, 8 prompts x 8 generations x 32 tokens, two cores.

Both load the same folder, render the same prompts with its chat template, draw exactly 32 tokens each, score them with
the same function, and update with the same clipped loss (beta 0, token mean) and AdamW; see `trl_peer` for what each
side's step is. TRL is told `min_new_tokens`, ours has no end token, so that no generation is shorter. Afterwards both
compute the loss of TRL's samples, under weights that have moved since: it must be the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import shapes
import trl_peer
from sizes import size
from trl import GRPOTrainer

from hud.agents.types import AgentConfig
from hud.environment import Environment
from hud.eval import LocalRuntime, Taskset
from hud.trace import SamplingParams
from hud.trace.chat_model import ChatModel

NEW, BAR = 32, 2.0
QUESTIONS = shapes.incidents()[: trl_peer.PROMPTS]

environment = Environment("incidents")


@environment.template()
async def question(number: int = 0):
    """Ask about one incident."""
    answer = yield QUESTIONS[number]
    yield trl_peer.reward_of(answer or "")


class OneTurn(ChatModel):
    """The policy, asked for exactly so many tokens."""

    def __init__(self, policy) -> None:
        self.name = "policy"
        self.model = policy.chat_model("policy")

    async def complete(self, messages, tools, _params, **context):
        return await self.model.complete(messages, tools, SamplingParams(max_tokens=NEW), **context)


def our_step(folder: Path) -> trl_peer.OurStep:
    """Return our side's step."""
    tasks = Taskset("incidents", [question(number=number) for number in range(len(QUESTIONS))])
    return trl_peer.OurStep(
        folder,
        tasks,
        LocalRuntime(environment),
        AgentConfig(model="policy", max_steps=1),
        lambda policy, _: OneTurn(policy),
    )


def main(rounds: int) -> int:
    """Print both times, the ratio, and the gap between the losses; fail below the bars."""
    trl_peer.quiet()
    with tempfile.TemporaryDirectory() as name:
        os.environ["HUD_HOME"] = f"{name}/home"
        folder = Path(name) / "policy"
        shapes.create_policy(folder, shapes.MIDDLE)
        turns = trl_peer.ByTurns(partial(our_step, folder))
        trl = GRPOTrainer(
            **trl_peer.trl_arguments(
                folder,
                QUESTIONS,
                max_completion_length=NEW,
                generation_kwargs={"min_new_tokens": NEW},
                max_steps=turns.steps(rounds),
            ),
            callbacks=[turns],
        )
        trl_peer.train(trl)
        turns.close()
        return trl_peer.report(turns, trl_peer.loss_gaps(trl, folder), "GRPO step", BAR)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=size(5, 1))
    sys.exit(main(parser.parse_args().rounds))
