"""Form that launches training: its fields are the settings of `TrainConfig`, which also validates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from hud.errors import UsageError
from hud.learning.losses.config import available_losses
from hud.train.config import TrainConfig
from hud.train.supervised.config import SupervisedConfig
from hud_dashboard.value_formats import written

MAIN = (
    "steps",
    "group",
    "tasks_per_step",
    "lr",
    "loss",
    "max_turns",
    "max_tokens",
    "reasoning_effort",
    "eval_every",
)
GROUPS = {
    "Optimizer": (
        "optimizer", "lr_schedule", "warmup_steps", "lr_floor", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm",
    ),
    "Loss and advantages": (
        "loss_config", "reward_scale", "baseline", "divide_by_std", "max_datums", "failed_runs", "dynamic_sampling", "zero_advantages",
        "shuffle_advantages",
    ),
    "Sampling": (
        "runtime", "temperature", "system_prompt", "max_concurrent", "rollout_timeout", "max_lag", "stale", "swap", "spare_groups", "curriculum",
        "context_policy", "compact_at", "compact_model", "seed",
    ),
    "Guard": (
        "guard", "guard_kl", "guard_reference_kl", "guard_entropy_low", "guard_entropy_high", "guard_growth", "guard_saturation",
    ),
    "Held-out scores and checkpoints": ("eval_group", "eval_temperature", "keep", "keep_every"),
}  # fmt: skip
GATE = ("promote", "min_gain", "max_regression", "critical")
ELSEWHERE = (
    *("model", "tasks", "held_out", "subagents", "joined"),
    *("metrics_file", "plot", "profile", "engine_process", "track"),
    *GATE,
)
"""Settings without a field: chosen elsewhere in the form, set only by a recipe, or paths and addresses of the server."""
RUNTIMES = ("local", "hosted")
"""Runtimes of a training that the server launches: its own machine, or the fleet."""
OTHERWISE_AHEAD = ("loss", "max_concurrent")
"""Settings with a default that depends on `max_lag`: the form shows none for them."""
OF_THE_MODEL = ("lr",)
"""Settings with a default that depends on the model: the field is empty, and its hint has the rule."""
LONGEST = 20_000
Kind = Literal["number", "text", "choice", "flag", "lines"]
_KINDS: dict[str, Kind] = {"keep": "text", "loss_config": "lines", "system_prompt": "lines"}
_LABELS = {
    "lr": "Learning rate",
    "lr_schedule": "Schedule",
    "lr_floor": "Floor",
    "group": "Group size",
    "max_turns": "Turns in a run, at most",
    "max_tokens": "Tokens in a turn, at most",
    "eval_every": "Steps between held-out scores",
    "eval_group": "Runs of each held-out task",
    "eval_temperature": "Temperature of held-out scores",
    "keep": "Newest checkpoints to keep, or all",
    "keep_every": "Steps between checkpoints that are never deleted",
    "eps": "Epsilon",
    "loss_config": "Keys of the loss, one NAME=NUMBER a line",
}


@dataclass(frozen=True)
class Field:
    """Field of the form."""

    name: str
    label: str
    kind: Kind
    hint: str
    value: str
    options: tuple[str, ...] = ()
    problem: str | None = None


def fields(form: Mapping[str, str], problems: Mapping[str, str]) -> dict[str, list[Field]]:
    """Return the fields by group ("": the main ones), with the given values or the defaults."""
    groups = {"": MAIN, **GROUPS}
    return {
        title: [_field(name, form.get(name), problems.get(name)) for name in names]
        for title, names in groups.items()
    }


def config_of(
    form: Mapping[str, str], model: str, tasks: str, held_out: Sequence[str]
) -> tuple[TrainConfig | None, dict[str, str]]:
    """Return the configuration, or its problems: a sentence for each field ("": for all of them)."""
    values: dict[str, Any] = {"model": model, "tasks": tasks, "held_out": list(held_out)}
    problems: dict[str, str] = {}
    for name in (*MAIN, *(advanced for names in GROUPS.values() for advanced in names)):
        text = form.get(name, "").strip()
        if len(text) > LONGEST:
            problems[name] = f"{label(name)} is longer than {LONGEST:,} characters."
        elif name == "loss_config":
            values[name], wrong = _numbers(text)
            if wrong:
                problems[name] = f"Each line is NAME=NUMBER, not {wrong[:80]!r}."
        elif name == "runtime" and text not in ("", *RUNTIMES):
            problems[name] = f"{label(name)} is one of {', '.join(RUNTIMES)}."
        elif text:
            values[name] = text
    try:
        config = TrainConfig(**values)
    except ValidationError as error:
        return None, _problems(error) | problems
    except UsageError as error:
        return None, {"loss": str(error)} | problems
    return (None, problems) if problems else (config, {})


def label(name: str) -> str:
    """Return the label of a setting."""
    return _LABELS.get(name) or name.replace("_", " ").capitalize()


def changed(config: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return the settings of a recorded configuration: name, value, and whether it is the default."""
    supervised = config.get("loss") == "cross_entropy"
    settings = SupervisedConfig.model_fields if supervised else TrainConfig.model_fields
    shown = []
    for name, field in settings.items():
        if name in ("model", "tasks", "held_out") or name not in config:
            continue
        value = config[name]
        default = value == field.get_default(call_default_factory=True)
        shown.append((name, _shown(value), default))
    return sorted(shown, key=lambda option: option[2])


def _shown(value: Any) -> str:
    """Return a setting in the notation of forms and files: `on`, `0.0001`, `token_mean=1`; a dash for None."""
    if value in (None, {}, []):
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{name}={written(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(written, value))
    return written(value)


def _field(name: str, text: str | None, problem: str | None) -> Field:
    described = TrainConfig.model_fields[name]
    default = described.get_default(call_default_factory=True)
    options = _options(name, described.annotation)
    kind: Kind = "choice" if options else _KINDS.get(name, "number")
    if described.annotation is bool:
        kind = "flag"
    shown = "" if default is None or default == {} else str(default)
    if isinstance(default, float):
        shown = f"{default:g}"
    # Descriptions are shared with Python's documentation.
    hint = (
        " ".join((described.description or "").split())
        .replace("; None:", "; left empty:")
        .replace("None:", "Left empty:")
        .replace("where None", "left empty")
        .replace("`", "")
    )
    if name in OTHERWISE_AHEAD:
        hint, shown = f"{hint} Default: {default}.", ""
    if name in OF_THE_MODEL:
        hint, shown = f"{hint} Left empty: the default.", ""
    if kind == "flag":
        shown = "on" if default else ""
    value = shown if text is None else text
    return Field(name, label(name), kind, hint, value, options, problem)


def _options(name: str, annotation: Any) -> tuple[str, ...]:
    if name == "runtime":
        return RUNTIMES
    if name == "loss":
        return ("", *(loss for loss in available_losses() if loss != "cross_entropy"))
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    options = [kind for kind in get_args(annotation) if kind is not type(None)]
    named = len(options) == 1 and get_origin(options[0]) is Literal
    return ("", *get_args(options[0])) if named else ()


def _numbers(text: str) -> tuple[dict[str, float], str | None]:
    """Return the numbers of NAME=NUMBER lines, and the first invalid line."""
    numbers: dict[str, float] = {}
    for line in filter(str.strip, text.splitlines()):
        name, _, number = line.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            return numbers, line.strip()
    return numbers, None


def _problems(error: ValidationError) -> dict[str, str]:
    sentences: dict[str, str] = {}
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        message = problem["msg"].removeprefix("Value error, ")
        message = message.replace("Input should be", "it must be")
        sentence = f"{label(name)}: {message}." if name else f"{message[:1].upper()}{message[1:]}."
        sentences.setdefault(name if name not in ELSEWHERE else "", sentence)
    return sentences
