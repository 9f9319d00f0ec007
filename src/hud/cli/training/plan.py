"""`hud plan`: estimates of a training run's memory, cost and speed."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from hud.train.planning.measured import Measured
    from hud.train.planning.simulation import Setup
    from hud.train.planning.sizing import Plan


@click.command(
    name="plan",
    epilog="""Memory and cost of large models:  hud plan --gpu-hour 2.50

Effect of more environments, or of asynchronous sampling, on an existing run:  hud plan my-policy --simulate --max-lag 2""",
)
@click.argument("model", required=False)
@click.option("--simulate", is_flag=True, help="Simulate MODEL's training from its records.")
@click.option("--job", help="Job with the rollouts; default: the model's newest training.")
@click.option(
    "--most", type=click.IntRange(1), default=256, show_default=True, help="Rollouts to read."
)
@click.option("--steps", type=click.IntRange(1), help="Optimizer steps.")
@click.option("--group", type=click.IntRange(1), help="Group size.")
@click.option("--tasks-per-step", type=click.IntRange(1), help="Groups per step.")
@click.option("--max-lag", type=click.IntRange(0), multiple=True, help="Repeatable.")
@click.option(
    "--environments",
    type=click.IntRange(1),
    multiple=True,
    help="Concurrent rollouts. Repeatable.",
)
@click.option("--samplers", type=click.IntRange(1), default=1, show_default=True)
@click.option("--trainers", type=click.IntRange(1), default=1, show_default=True)
@click.option("--apart", is_flag=True, help="Separate devices for sampling and training.")
@click.option("--gpu-memory", type=float, default=80.0, show_default=True, help="GiB.")
@click.option("--gpu-bandwidth", type=float, default=3.35, show_default=True, help="TB/s.")
@click.option("--gpu-tflops", type=float, default=989.0, show_default=True, help="Dense bf16.")
@click.option("--gpu-hour", type=float, help="Price of a GPU hour.")
@click.option(
    "--environment-hour",
    type=float,
    default=0.0,
    show_default=True,
    help="Price of an environment hour.",
)
@click.option(
    "--rollouts", type=click.IntRange(1), default=512, show_default=True, help="Of a step."
)
@click.option(
    "--turns", type=click.IntRange(1), default=10, show_default=True, help="Of a rollout."
)
@click.option(
    "--tokens-per-turn", type=click.IntRange(1), default=400, show_default=True, help="Drawn."
)
@click.option(
    "--observed-per-turn",
    type=click.IntRange(0),
    default=600,
    show_default=True,
    help="Of tool results.",
)
@click.option("--prompt", type=click.IntRange(1), default=2000, show_default=True, help="Tokens.")
@click.option(
    "--environment-seconds", type=float, default=5.0, show_default=True, help="Of a turn."
)
def command(model: str | None, simulate: bool, **options: Any) -> None:
    """Plan a training run: memory and cost of large models, or, with --simulate, the speed of MODEL's.

    The table is an estimate for samplers, trainer and environments; the simulation uses rollouts and updates recorded by
    MODEL's training on this machine.
    """
    from hud.cli.platform_requests import run
    from hud.errors import UsageError

    if simulate != (model is not None):
        raise UsageError(
            "Give a MODEL together with --simulate, or neither for the table of sizes."
        )
    if model is not None:
        run(_simulate(model, options))
    else:
        _size(options)


def _size(options: dict[str, Any]) -> None:
    from hud.cli.output import console, table
    from hud.train.planning.sizing import GIB, SHAPES, Machine, Work, plan_for

    machine = Machine(options["gpu_memory"], options["gpu_bandwidth"], options["gpu_tflops"])
    work = Work(
        rollouts=options["rollouts"],
        turns=options["turns"],
        tokens_per_turn=options["tokens_per_turn"],
        observed_per_turn=options["observed_per_turn"],
        prompt=options["prompt"],
        environment_seconds_per_turn=options["environment_seconds"],
        steps=options["steps"] or Work.steps,
    )
    plans = [
        plan_for(shape, work, machine, lora=lora) for shape in SHAPES for lora in (False, True)
    ]
    shown = table("", *(f"{plan.model} {plan.training}" for plan in plans))
    rows: dict[str, Callable[[Plan], str]] = {
        "trainer, GiB": lambda plan: f"{plan.trainer_bytes / GIB:,.0f}",
        "trainer, GPUs": lambda plan: f"{plan.trainer_gpus:,}",
        "one sampler, GiB": lambda plan: f"{plan.sampler_bytes / GIB:,.0f}",
        "one sampler, GPUs": lambda plan: f"{plan.gpus_per_sampler:,}",
        "samplers": lambda plan: f"{plan.samplers:,}",
        "environments": lambda plan: f"{plan.environments:,}",
        "GPUs": lambda plan: f"{plan.gpus:,}",
        "sampling a step, s": lambda plan: f"{plan.sampling_seconds:,.0f}",
        "training a step, s": lambda plan: f"{plan.training_seconds:,.0f}",
        "GPU hours": lambda plan: f"{plan.gpu_hours:,.0f}",
    }
    if options["gpu_hour"] is not None:
        prices = options["gpu_hour"], options["environment_hour"]
        rows["cost"] = lambda plan: f"{plan.cost(*prices):,.0f}"
    for name, cell in rows.items():
        shown.add_row(name, *map(cell, plans))
    out = console()
    out.print(shown)
    out.print(
        f"{work.steps:,} steps of {work.rollouts:,} rollouts: {work.turns} turns of {work.tokens_per_turn:,} drawn and "
        f"{work.observed_per_turn:,} observed tokens after a prompt of {work.prompt:,}; {work.environment_seconds_per_turn:g} s of "
        "environment a turn. Sampling and training side by side. hud.train.planning.sizing has the arithmetic."
    )


async def _simulate(model: str, options: dict[str, Any]) -> None:
    from hud.cli.output import console, table
    from hud.train.planning.simulation import simulate

    measured, known, took = await recorded(model, options["job"], options["most"])
    given = {name: options[name] for name in ("steps", "group", "tasks_per_step") if options[name]}
    base = dataclasses.replace(
        known,
        **given,
        samplers=options["samplers"],
        trainers=options["trainers"],
        shared_device=not options["apart"],
    )
    out = console()
    out.print(
        f"{len(measured.shapes):,} recorded rollouts; a decode step costs {measured.decode.base * 1e3:.2f} ms and "
        f"{measured.decode.each * 1e6:.0f} µs for each sequence; an update {measured.update_seconds:.2f} s."
    )
    if took is not None:
        again = simulate(measured, dataclasses.replace(known, steps=took[0]))
        out.print(
            f"Check: {took[0]} steps of that run took {took[1]:.1f} s; simulated {again.seconds:.1f} s "
            f"({again.seconds / took[1]:.2f} of it)."
        )
    shown = table(
        "max lag",
        "rollouts at a time",
        "step",
        "rollouts a second",
        "tokens a second",
        "sampler busy",
        "trainer busy",
        "mean lag",
    )
    for wanted in options["environments"] or (None,):
        for lag in options["max_lag"] or (base.max_lag,):
            environments = wanted or _environments(base, lag)
            setup = dataclasses.replace(base, environments=environments, max_lag=lag)
            found = simulate(measured, setup)
            shown.add_row(
                str(lag),
                str(environments),
                f"{found.seconds / setup.steps:.2f} s",
                f"{found.rollouts_per_second:,.1f}",
                f"{found.tokens_per_second:,.0f}",
                f"{found.sampler_busy:.0%}",
                f"{found.trainer_busy:.0%}",
                f"{found.lag:.1f}",
            )
    out.print(shown)


def _environments(known: Setup, max_lag: int) -> int:
    """Return the concurrent rollouts of the run with another `max_lag`: the configured number, or the default."""
    from hud.train.config import rollouts_at_once

    by_default = known.environments == rollouts_at_once(known.max_lag)
    return rollouts_at_once(max_lag) if by_default else known.environments


async def recorded(
    model: str, reference: str | None, most: int
) -> tuple[Measured, Setup, tuple[int, float] | None]:
    """Return the records of a model's training, its configuration, and the number and duration of its steps."""
    from hud.cli.output import training_usage
    from hud.cli.platform_requests import pages
    from hud.client import connect
    from hud.errors import NotFoundError
    from hud.trace.steps import parse_trace
    from hud.train.planning.measured import measure
    from hud.train.planning.simulation import Setup

    client = connect()
    found = await client.get("/v2/models/resolve", params={"model": model})
    runs = (await client.get("/v2/training-runs", params={"model": found["id"]}))["items"]
    if not runs:
        raise NotFoundError(
            f"{model!r} was never trained. Train it for a few steps first. {training_usage(model)}"
        )
    newest = runs[0]
    steps = (await client.get(f"/v2/training-runs/{newest['id']}/steps"))["items"]
    if reference is None:
        name = f"{newest['config']['model']} training"
        jobs = [job async for job in pages("/v2/jobs", 200) if job["name"] == name]
        if not jobs:
            raise NotFoundError(f"No job named {name!r} is among the newest; say which with --job.")
        reference = jobs[0]["id"]
    job = await client.get(f"/v2/jobs/{reference}")
    rollouts = []
    traces = f"/v2/jobs/{job['id']}/traces"
    # From its middle: the start includes loading and compilation.
    total = (await client.get(traces, params={"limit": 1}))["total"]
    async for row in pages(traces, most, first=max(0, (total - most) // 2)):
        recorded = await client.get(f"/v2/trace/{row['id']}/full")
        run = recorded["run"]
        if run["started_at"] and run["ended_at"]:
            rollouts.append(
                (
                    _seconds(run["started_at"]),
                    parse_trace(recorded["trace"]),
                    _seconds(run["ended_at"]),
                )
            )
    updates, applying = (
        [row["metrics"][name] for row in steps if name in row["metrics"]]
        for name in ("seconds_update:sum", "seconds_apply:sum")
    )
    took = [row["metrics"]["seconds:sum"] for row in steps if "seconds:sum" in row["metrics"]]
    config = newest["config"]
    setup = Setup(
        steps=config["steps"],
        group=config["group"],
        tasks_per_step=config["tasks_per_step"],
        max_lag=config.get("max_lag", 0),
        dynamic_sampling=config["dynamic_sampling"],
        environments=config["max_concurrent"],
    )
    measured = measure(
        rollouts,
        updates,
        overlapping=setup.max_lag > 0,
        left_out=_left_out([row["metrics"] for row in steps]),
        applying=applying,
    )
    return measured, setup, (len(took), sum(took)) if took else None


def _left_out(steps: list[dict[str, float]]) -> float:
    """Return the share of groups that no step used."""
    reasons = ("groups_without_spread:sum", "groups_broken:sum", "groups_stale:sum")
    drawn = sum(metrics.get("groups_drawn:sum", 0.0) for metrics in steps)
    left = sum(metrics.get(name, 0.0) for metrics in steps for name in reasons)
    return left / drawn if drawn else 0.0


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
