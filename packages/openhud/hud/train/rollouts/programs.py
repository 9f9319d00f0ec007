"""Programs, and agents behind HTTP, that play with the policy in training.

They sample through the run's pass, which serves the newest weights and records every turn with its ids. A turn's seed depends on the
run and the number of the call, so that a program which asks the same again gets the same tokens in a resumed training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hud.agents.agent import Agent
from hud.agents.agent_forms import as_agent, is_program
from hud.agents.programs.own_loop_agent import OwnLoopAgent
from hud.errors import UsageError
from hud.train.rollouts.seeds import place_of, seed_of

if TYPE_CHECKING:
    from hud.train.config import TrainConfig


def program_agent(
    config: TrainConfig,
    temperature: float,
    checkpoint: str | None = None,
    place: tuple[object, ...] = (),
) -> Agent:
    """Return the agent of `config.agent`, which plays with the policy at its head or at a checkpoint.

    `place`: position of the agent's runs in the training, for their seeds.

    Raises `UsageError` for another form of agent, and for settings that it does not have.
    """
    assert config.agent is not None
    if not is_program(config.agent):
        raise UsageError(
            f"agent={config.agent!r} is no program and no address of an agent's server: leave it out, and the policy plays by itself."
        )
    sampling: dict[str, Any] = {"max_tokens": config.max_tokens, "temperature": temperature}
    limits = {"max_steps": config.max_turns}
    settings = {**limits, **config.agent_settings, **sampling, "model": config.model}
    if checkpoint is not None:
        settings["checkpoint"] = checkpoint
    agent = as_agent(config.agent, settings)
    assert isinstance(agent, OwnLoopAgent)
    agent.model = agent.model.trained(lambda run: seed_of(*place, *place_of(run)))
    return agent
