"""`GymnasiumEnvironment`: a text environment of Gymnasium as one of ours, played through one tool.

Needs `pip install gymnasium`. The agent reads observations as text and acts with the tool `act`; every run plays a game of its
own, reset with the seed of its task.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field

from hud.environment import Environment, OpenPart, Part
from hud.environment.tools.tool import Tool
from hud.errors import UsageError
from hud.graders import EvaluationResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gymnasium import Env, Space

    from hud.environment.run import EnvironmentRun
    from hud.environment.templates.task import Task

_HIGHLIGHTED = re.compile(r"\x1b\[[1-9][0-9;]*m(.*?)\x1b\[0m", re.DOTALL)
"""Text between ANSI codes: games mark the player's place by a colour."""
_CODE = re.compile(r"\x1b\[[0-9;]*m")


class OpenGame(OpenPart):
    """The game of a run."""

    def __init__(self, game: Env[Any, Any]) -> None:
        self.game = game
        self.total = 0.0
        """Sum of the rewards."""
        self.steps = 0
        self.over: str | None = None
        """`terminated` or `truncated`, once it is over."""


class _Game(Part[OpenGame]):
    name = "game"

    def __init__(self, make: Callable[[], Env[Any, Any]]) -> None:
        self._make = make

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenGame]:
        del run
        game = self._make()
        try:
            yield OpenGame(game)
        finally:
            game.close()


class GymnasiumEnvironment(Environment):
    """A game of Gymnasium: template `episode`, tool `act`."""

    def __init__(
        self,
        game: str | Callable[..., Env[Any, Any]],
        *,
        name: str | None = None,
        instructions: str = "",
        actions: Sequence[str] = (),
        returns: tuple[float, float] = (0.0, 1.0),
        show: Callable[[Any], str] | None = None,
        **settings: Any,
    ) -> None:
        """`game` is an id of Gymnasium, or a function that makes a game; `settings` are its arguments.

        `actions` names the actions of a discrete space, from its first on. `returns` are the sums of rewards that are worth 0
        and 1; the reward of a run is linear between them and clamped. `show` makes a text of an observation.
        """
        super().__init__(name or _name_of(game))
        self.source_file = sys._getframe(1).f_code.co_filename
        worst, best = returns
        if not worst < best:
            raise UsageError(f"returns must be (worst, best) with worst below best, not {returns}.")
        self._settings, self._source = settings, game
        self._returns = returns
        self._show = show or _shown
        sample = self._made()
        try:
            self._space: Space[Any] = sample.action_space
            self._text = sample.render_mode == "ansi"
        finally:
            sample.close()
        self._names = _checked_names(actions, self._space)
        self._instructions = instructions
        self._game = self.add(_Game(self._made))
        self.add(Tool(self._act_tool(), name="act"))
        self.template(id="episode")(self._played_episode())

    def episode(self, seed: int = 0, **options: Any) -> Task:
        """Return the task of playing the game that `seed` and the options of its `reset` begin."""
        return self.templates["episode"](seed=seed, options=options)

    def _made(self) -> Env[Any, Any]:
        import gymnasium

        settings = dict(self._settings)
        if not isinstance(self._source, str):
            return self._source(**settings)
        try:
            spec = gymnasium.spec(self._source)
            if "render_mode" not in settings and "ansi" in _render_modes(spec):
                settings["render_mode"] = "ansi"
            return gymnasium.make(spec, **settings)
        except gymnasium.error.Error as error:
            raise UsageError(f"Gymnasium has no game {self._source!r} here: {error}") from error

    def _played_episode(self) -> Any:
        async def episode(seed: int = 0, options: dict[str, Any] | None = None) -> AsyncGenerator[Any, Any]:  # fmt: skip
            """Play one game until it is over."""
            opened = self._game.opened
            observation, _ = opened.game.reset(seed=seed, options=options or None)
            parts = [
                self._instructions,
                "Act with the tool act until the game is over, then say done.",
            ]
            yield "\n\n".join([*filter(None, parts), self._seen(opened, observation)])
            worst, best = self._returns
            reward = min(1.0, max(0.0, (opened.total - worst) / (best - worst)))
            yield EvaluationResult(
                reward=reward if opened.steps else 0.0,
                content=f"The rewards add up to {opened.total:g} in {opened.steps} steps.",
                info={"return": opened.total, "steps": opened.steps, "ended": opened.over},
            )

        return episode

    def _act_tool(self) -> Callable[..., str]:
        def act(action: Any) -> str:
            opened = self._game.opened
            if opened.over is not None:
                raise UsageError("The game is over.")
            observation, reward, terminated, truncated, _ = opened.game.step(self._action(action))
            opened.steps += 1
            opened.total += float(reward)
            if terminated or truncated:
                opened.over = "terminated" if terminated else "truncated"
            lines = [self._seen(opened, observation), f"Reward: {float(reward):g}"]
            return "\n".join([*lines, *(["The game is over."] if opened.over else [])])

        act.__doc__ = "Take one action, and return the observation and the reward after it."
        act.__annotations__ = {"action": self._annotation(), "return": str}
        return act

    def _annotation(self) -> Any:
        """Return the type of the tool's argument, from the space of actions."""
        from gymnasium import spaces

        space = self._space
        if self._names:
            return Literal[self._names]
        if isinstance(space, spaces.Discrete):
            first = int(space.start)
            return Annotated[int, Field(ge=first, le=first + int(space.n) - 1)]
        if isinstance(space, spaces.Text):
            return Annotated[str, Field(min_length=space.min_length, max_length=space.max_length)]
        if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            return list[int] if len(cast(Any, space.shape)) == 1 else list[Any]
        if isinstance(space, spaces.Box):
            return list[float] if len(space.shape) == 1 else list[Any]
        raise UsageError(
            f"Actions of {self.name!r} are {space}, which has no form as a tool's argument; wrap the game so that they "
            "are Discrete, Text, MultiDiscrete, MultiBinary or Box."
        )

    def _action(self, sent: Any) -> Any:
        """Return an element of the space; raises `UsageError` for what is none."""
        import numpy as np
        from gymnasium import spaces

        space = self._space
        if self._names:
            return int(cast(spaces.Discrete, space).start) + self._names.index(sent)
        if isinstance(space, spaces.Discrete | spaces.Text):
            action = sent
        else:
            try:
                action = np.asarray(sent, dtype=space.dtype).reshape(cast(Any, space.shape))
            except (ValueError, TypeError) as error:
                raise UsageError(f"{sent} is no action; actions are {space}.") from error
        if not space.contains(action):
            raise UsageError(f"{sent!r} is no action; actions are {space}.")
        return action

    def _seen(self, opened: OpenGame, observation: Any) -> str:
        text = f"Observation: {self._show(observation)}"
        if not self._text:
            return text
        drawn = opened.game.render()
        return f"{_plain(drawn)}\n{text}" if isinstance(drawn, str) else text


def _name_of(game: str | Callable[..., Any]) -> str:
    named = game if isinstance(game, str) else getattr(game, "__name__", "game")
    return re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")


def _render_modes(spec: Any) -> Sequence[str]:
    """Return the ways in which a registered game can be drawn."""
    from gymnasium.envs.registration import load_env_creator

    made = spec.entry_point
    creator = load_env_creator(made) if isinstance(made, str) else made
    modes: Sequence[str] = (getattr(creator, "metadata", None) or {}).get("render_modes", ())
    return modes


def _checked_names(actions: Sequence[str], space: Any) -> tuple[str, ...]:
    from gymnasium import spaces

    if not actions:
        return ()
    if not isinstance(space, spaces.Discrete) or len(actions) != int(space.n):
        raise UsageError(f"{len(actions)} names of actions do not fit {space}.")
    return tuple(actions)


def _shown(observation: Any) -> str:
    """Return an observation as text: arrays as nested lists, rounded to four digits."""
    import numpy as np

    if isinstance(observation, dict):
        return ", ".join(f"{name}: {_shown(value)}" for name, value in observation.items())
    if isinstance(observation, tuple):
        return f"({', '.join(map(_shown, observation))})"
    if isinstance(observation, np.ndarray | np.generic):
        # In float64, as the digits of others are not those of decimals.
        if observation.dtype.kind == "f":
            return str(np.round(observation.astype(np.float64), 4).tolist())
        return str(observation.tolist())
    return str(observation)


def _plain(drawn: str) -> str:
    """Return a drawing without ANSI codes, with brackets around what they highlight."""
    return _CODE.sub("", _HIGHLIGHTED.sub(r"[\1]", drawn)).strip("\n")
