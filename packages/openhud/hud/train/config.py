"""`TrainConfig`: the configuration of a training run, with equal names in Python, TOML and `hud train`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from hud.agents.context_window import ContextPolicy, check_compaction
from hud.engine.backends.registered import PLATFORM, backend_named
from hud.errors import UsageError
from hud.input_files import read_input_text
from hud.learning.losses.config import parse_loss
from hud.learning.wire_types import MOST_DATUMS, AdvantageOptions, FailedRuns
from hud.review.judge_method import Method
from hud.trace import ReasoningEffort
from hud.train.monitoring.alarms import Bands
from hud.train.run_settings import RunSettings


class SubagentConfig(BaseModel):
    """Player of a subagent in training; None: the orchestrator's setting."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model: str
    """Slug of the model."""
    max_turns: int | None = Field(default=None, ge=1)
    """Maximum model calls of a run; its tool may allow fewer."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a turn."""
    system_prompt: str | None = None
    """System prompt; None: no system prompt."""
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort; None: its chat template's default."""


TRUNCATED = (
    "training samples from the whole distribution of the policy; the log-probabilities of a truncated one cannot be trained on. "
    "Leave it out, or set the temperature."
)
"""Refusal of `top_p` and `top_k`."""
_FEWEST_BETWEEN = 10
"""Least steps between permanently kept checkpoints."""
_KEPT_OF_A_RUN = 20
"""Checkpoints of a long run that are kept permanently."""


def rollouts_at_once(max_lag: int) -> int:
    """Return the default number of concurrent rollouts: more than a step's if they are sampled ahead."""
    return 128 if max_lag else 64


class TrainConfig(RunSettings):
    """A training run: rollouts and updates in alternation."""

    backend: str = PLATFORM
    """Place of the weights: `platform`, or a training service that a package adds; the model is then one of its base models, or one
    trained there before."""
    steps: int = Field(default=50, ge=1)
    """Number of optimizer steps."""
    group: int = Field(default=8, ge=1)
    """Group size: runs of each task in a step. At least 2 without a teacher."""
    tasks_per_step: int = Field(default=8, ge=1)
    """Number of groups with signal per step."""
    dynamic_sampling: int = Field(default=1, ge=0)
    """Maximum resampling rounds of tasks in a step, for groups without signal. 0: none."""
    curriculum: Literal["uniform", "signal"] = "uniform"
    """Order of the tasks. `uniform`: every task before any twice. `signal`: by expected gradient weight, learned from the run's own
    groups."""

    loss: str = "importance_sampling"
    """importance_sampling, ppo, cispo, dro, gspo or dppo; with `--from`: cross_entropy, dpo or bradley_terry. Default with `max_lag` above 0: ppo with a dual_clip of 3, since
    unbounded importance weights of old tokens can collapse the policy."""
    loss_config: dict[str, float] = Field(default_factory=dict)
    """Keys of the loss, such as `clip_high_threshold` or `kl_coef`; unknown keys are errors."""
    teacher: str | None = None
    """On-policy distillation: model with the same tokenizer that scores the sampled tokens. `kl_coef` (default 1) times the reverse KL to it
    is minimized at each of them; `--reward-scale` above 0 adds the reward's advantage."""
    teacher_hint: str | None = None
    """Key of the grade's `info` whose text the teacher alone reads before the first turn, such as the solution. The model may then be its own
    teacher."""
    judge: str | None = None
    """Judge of groups: a model, a reward model, or path.py:name, a function of `runs`, that grades all runs of a task together. Held-out
    scores stay the environment's."""
    judge_by: Method | None = None
    """Way in which a model compares the runs. Default: scores, from 0 to 1 by each criterion."""
    criteria: list[str] = Field(default_factory=list)
    """Criteria of a judge that is a model, as TEXT or TEXT=WEIGHT."""
    judge_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the judge in the reward; the rest is the environment's grade."""
    reward_scale: float = 1.0
    """Factor of every advantage of a reward. Default with a teacher: 0."""
    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    """Baseline of a run's reward: the group's mean, the mean of the group's other runs, or none."""
    divide_by_std: bool = False
    """Divide advantages by the group's reward standard deviation."""
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of a later turn's reward, for each turn in between, where a grade has rewards of turns."""
    turn_weight: float = Field(default=1.0, ge=0)
    """Weight of the turns' own advantages beside the run's, where a grade has rewards of turns. 0: they have no effect."""
    max_datums: int = Field(default=MOST_DATUMS, ge=1)
    """Most datums of a run: a run whose calls branch has several. Those with the most sampled tokens are kept."""
    failed_runs: FailedRuns = "drop_run"
    """Effect of a failed run (environment, grader, infrastructure, time-out) on its group."""
    zero_advantages: bool = False
    """All advantages are 0, so that no weight moves: a test of determinism."""
    shuffle_advantages: bool = False
    """Null experiment: advantages change places within each group, so that weights move and nothing is to be learned."""
    max_lag: int = Field(default=0, ge=0)
    """Maximum policy lag, in optimizer steps. 0: synchronous. Above 0, rollouts do not wait for the trainer."""
    stale: Literal["drop", "correct"] = "drop"
    """Treatment of groups older than `max_lag`: dropped, or kept for a loss with bounded importance weights."""
    swap: Literal["in_flight", "finish"] = "in_flight"
    """With `max_lag`: active turns continue with new weights, or finish with the old ones."""

    engine_process: Literal["auto", "off"] = "auto"
    """Process that samples and trains. `auto`: one of its own on a GPU, on a CPU that of the rollouts. `off`: that of the rollouts."""
    profile: str | None = None
    """JSON file for a trace of the second step, host and GPU, which https://ui.perfetto.dev opens; `.json.gz` compresses it."""

    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature in training."""
    spare_groups: int = Field(default=0, ge=0)
    """Groups that a step without `max_lag` begins beyond those that it needs. It learns from the first complete ones, and
    cancels the others, the youngest among them: for fleets in which single rollouts take much longer."""
    max_concurrent: int = Field(default=rollouts_at_once(0), ge=1)
    """Concurrent rollouts; 1 makes a run bitwise reproducible. Default with `max_lag` above 0: 128."""

    promote: Literal["always", "gate"] = "always"
    """`always`: every step moves the head. `gate`: a fork, `MODEL-candidate-N`, is trained, and the model's head moves
    only to checkpoints that pass the gate on held-out scores."""
    min_gain: float = 0.0
    """Gate: gain over the head's held-out score to exceed."""
    max_regression: float = Field(default=0.05, ge=0)
    """Gate: maximum loss of mean reward in a critical subset."""
    critical: list[str] = Field(default_factory=list)
    """Gate: subsets of the held-out tasks that must not regress, as COLUMN=VALUE of the tasks' columns."""

    guard_kl: float = Field(default=Bands.kl, gt=0)
    """Guard: largest KL between sampler and trainer (k3), in nats a token."""
    guard_reference_kl: float | None = Field(default=Bands.reference_kl, gt=0)
    """Guard: largest KL to the reference, in nats a token, where the loss measures it (kl_coef)."""
    guard_entropy_low: float = Field(default=Bands.entropy_low, ge=0)
    """Guard: smallest entropy, as a multiple of the first steps', while the reward is neither high nor rising."""
    guard_entropy_high: float = Field(default=Bands.entropy_high, gt=0)
    """Guard: largest entropy, as a multiple of the first steps'."""
    guard_growth: float = Field(default=Bands.growth, gt=1)
    """Guard: growth of a rollout's tokens in 20 steps that has to bring reward, as a factor."""
    guard_saturation: float = Field(default=Bands.saturation, gt=0, le=1)
    """Guard: mean from which on a component of the grade is saturated, so that the others have to rise."""

    agent: str | None = None
    """Agent that plays with the policy: an installed program (`mini-swe-agent`, `harness`, ...) or the address of an agent's server.
    None: the policy's own tool loop."""
    agent_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that agent, such as `command` of `harness`."""

    context_policy: ContextPolicy = "stop"
    """Behaviour of the policy and its subagents when a conversation exceeds the context window: `stop`, `drop_images`, or `compact`,
    which goes on from a summary."""
    compact_at: int | None = Field(default=None, ge=1)
    """With `compact`: tokens of a turn's prompt and output from which on the conversation is summarized before the next turn."""
    compact_model: str | None = None
    """With `compact`: slug of the model that summarizes; None: the policy, which learns to."""

    subagents: dict[str, SubagentConfig] = Field(default_factory=dict)
    """Models of subagents by slug, keyed by the tool's name or the environment's model of it. Others play with the
    environment's model."""
    joined: list[str] = Field(default_factory=list)
    """Models of subagents that are trained, too, each on its own runs; others are frozen."""

    @field_validator("backend")
    @classmethod
    def _is_registered(cls, name: str) -> str:
        if name != PLATFORM:
            try:
                backend_named(name)
            except UsageError as error:
                raise ValueError(str(error)) from None
        return name

    @field_validator("subagents", mode="before")
    @classmethod
    def _models_by_slug(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: {"model": agent_settings} if isinstance(agent_settings, str) else agent_settings
            for name, agent_settings in value.items()
        }

    @model_validator(mode="after")
    def _defaults_of_modes(self) -> TrainConfig:
        set_fields = self.model_fields_set
        if "max_concurrent" not in set_fields:
            self.max_concurrent = rollouts_at_once(self.max_lag)
        if self.max_lag and "loss" not in set_fields:
            self.loss, self.loss_config = "ppo", {"dual_clip": 3.0, **self.loss_config}
        if self.teacher is not None:
            if "kl_advantage_coef" not in self.loss_config:
                self.loss_config = {"kl_coef": 1.0, "kl_estimator": 0.0, **self.loss_config}
            if "reward_scale" not in set_fields:
                self.reward_scale = 0.0
        if self.promote == "gate" and "eval_group" not in set_fields:
            self.eval_group = 5
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> TrainConfig:
        loss = parse_loss(self.loss, self.loss_config)
        if self.teacher is not None and not loss.needs_reference:
            raise ValueError("a teacher has no effect without kl_coef or kl_advantage_coef")
        if self.teacher_hint is not None and self.teacher is None:
            raise ValueError("a teacher_hint needs a teacher, which may be the model itself")
        if self.group < 2 and self.teacher is None:
            raise ValueError("a group of one run has no signal: group must be at least 2")
        if self.teacher is not None and self.backend != PLATFORM:
            raise ValueError(f"backend={self.backend!r} cannot be used with a teacher")
        if self.max_lag and self.joined:
            raise ValueError(
                "subagents that learn along (joined) learn from the same step, so max_lag must be 0 with them"
            )
        if self.promote == "gate" and self.joined:
            raise ValueError(
                "the gate judges the policy alone, so subagents that learn along (joined) cannot go with promote='gate'"
            )
        if self.zero_advantages and self.shuffle_advantages:
            raise ValueError(
                "zero_advantages leaves shuffle_advantages nothing to shuffle: choose one of them"
            )
        if self.stale == "correct" and not self.bounds_ratios:
            raise ValueError(
                "stale='correct' needs a loss that bounds its importance weights: ppo, cispo, gspo, dppo, or one whose loss_config "
                f"drops tokens (icepop_high, outlier_mask_high), not {self.loss}"
            )
        check_compaction(self.context_policy, self.compact_at, self.compact_model)
        self._check_agent()
        if self.backend != PLATFORM:
            refused = backend_named(self.backend).refusal(self)
            if refused is not None:
                raise ValueError(f"backend={self.backend!r} cannot be used with {refused}")
        if self.loss == "cross_entropy":
            raise ValueError(
                "cross_entropy learns from recorded runs, not from rollouts: give a job (--from) or use warm_up()"
            )
        return self

    def _check_agent(self) -> None:
        """Raise `ValueError` for settings that an agent with its own tool loop does not have."""
        if self.agent is None:
            if self.agent_settings:
                raise ValueError("agent_settings are settings of an agent: name it with agent")
            return
        for name in ("system_prompt", "reasoning_effort", "compact_at"):
            if getattr(self, name) is not None:
                raise ValueError(f"agent={self.agent!r} has its own prompts: leave {name} out")
        if self.backend != PLATFORM:
            raise ValueError(
                f"agent={self.agent!r} asks the platform for its turns, which backend={self.backend!r} does not sample"
            )

    @property
    def bounds_ratios(self) -> bool:
        """True for a loss with bounded importance weights."""
        return parse_loss(self.loss, self.loss_config).bounds_ratios

    @property
    def advantages(self) -> AdvantageOptions:
        """Options of the advantages."""
        return AdvantageOptions(
            baseline=self.baseline,
            divide_by_std=self.divide_by_std,
            failed_runs=self.failed_runs,
            permutation_seed=self.seed if self.shuffle_advantages else None,
            turn_discount=self.turn_discount,
            turn_weight=self.turn_weight,
        )

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps of the run."""
        return self.steps

    @property
    def loss_arguments(self) -> dict[str, Any]:
        """Arguments of `TrainingClient.forward_backward`."""
        return {
            "loss_fn": self.loss,
            "loss_fn_config": self.loss_config or None,
            "teacher": self.teacher,
            "teacher_hint": self.teacher_hint,
            "reward_scale": 0.0 if self.zero_advantages else self.reward_scale,
            "advantages": self.advantages,
            "max_datums": self.max_datums,
        }

    def most_groups(self, first_step: int = 0) -> int:
        """Return the most groups that the steps from `first_step` on play, and those that are played ahead of the last one."""
        steps = self.steps - first_step + self.max_lag
        return steps * (1 + self.dynamic_sampling) * (self.tasks_per_step + self.spare_groups)

    @property
    def updates_in_flight(self) -> bool:
        """True if active turns continue with new weights."""
        return self.max_lag > 0 and self.swap == "in_flight"

    @property
    def kept_every(self) -> int:
        """Steps between permanently kept checkpoints."""
        return self.keep_every or max(_FEWEST_BETWEEN, -(-self.steps // _KEPT_OF_A_RUN))

    @property
    def player(self) -> SubagentConfig:
        """Settings of the model's agent, as the policy here and as a subagent of other trainings."""
        return SubagentConfig(**{name: getattr(self, name) for name in SubagentConfig.model_fields})


def make_config(values: dict[str, Any], where: str = "The training configuration") -> TrainConfig:
    """Return a validated configuration; raises `UsageError` with the first error."""
    try:
        return TrainConfig(**values)
    except ValidationError as error:
        raise UsageError(f"{where}: {_first_problem(error)}") from None


def load_config(path: Path | None, overrides: dict[str, Any]) -> TrainConfig:
    """Return the configuration of a TOML file, updated by `overrides` (of the command line)."""
    if path is None:
        return make_config(overrides)
    return make_config({**read_toml(path), **overrides}, str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's contents; raises `UsageError` for an invalid one."""
    text = read_input_text(path)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # Also for a number of too many digits.
        raise UsageError(f"{path} is not TOML: {error}.") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deep.") from None


def _first_problem(error: ValidationError) -> str:
    # Misspelt names first: they may be the cause of missing ones.
    problem = min(error.errors(), key=lambda details: details["type"] != "extra_forbidden")
    name = ".".join(str(part) for part in problem["loc"])
    if name in ("top_p", "top_k"):
        return f"{name}: {TRUNCATED}"
    if problem["type"] == "extra_forbidden":
        return (
            f"there is no setting {name!r}; the settings are {', '.join(TrainConfig.model_fields)}."
        )
    message = problem["msg"].removeprefix("Value error, ").removesuffix(".")
    return f"{name}: {message}." if name else f"{message}."
