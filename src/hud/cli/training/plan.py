"""`hud plan`: estimates of a training run's memory, cost and speed."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hud.train.planning.memory import TRAININGS
from hud.train.planning.model_shapes import MACHINES
from hud.train.planning.preemption import Preemption

if TYPE_CHECKING:
    from hud.train.planning.measured import Measured
    from hud.train.planning.model_shapes import Machine
    from hud.train.planning.setup import Setup
    from hud.train.planning.speed import Work

POSITIVE = click.FloatRange(0, min_open=True)
NOT_NEGATIVE = click.FloatRange(0)
FRACTION = click.FloatRange(0, 1, min_open=True)

PER_HOUR = 0.1
"""Default preemptions of a spot machine an hour in the table."""


@click.command(
    name="plan",
    epilog="""Memory of MODEL, or of a folder, on one GPU:  hud plan my-model --gpu H100

Fleets of large models, and their cost:  hud plan --training 8bit

Effect of asynchronous sampling, or of preemption, on an existing run:  hud plan my-policy --simulate --max-lag 2""",
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
@click.option(
    "--nodes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Machines that share the simulated environments.",
)
@click.option(
    "--node-preemptions",
    type=NOT_NEGATIVE,
    help=f"Preemptions of a node of environments an hour; default: {PER_HOUR:g} in the table, 0 simulated.",
)
@click.option("--sampler-preemptions", type=NOT_NEGATIVE, help="The same, of a sampler.")
@click.option(
    "--away",
    type=NOT_NEGATIVE,
    default=180.0,
    show_default=True,
    help="Seconds until a preempted machine is replaced.",
)
@click.option(
    "--training",
    type=click.Choice(TRAININGS),
    help="Trained weights, and storage of the optimizer's states; default: MODEL's own, 8bit in the table.",
)
@click.option(
    "--gpu",
    type=click.Choice(sorted(MACHINES), case_sensitive=False),
    default="H200",
    show_default=True,
    help="Its data sheet.",
)
@click.option("--gpu-memory", type=POSITIVE, help="GiB, instead of the data sheet's.")
@click.option("--gpu-bandwidth", type=POSITIVE, help="TB/s, instead of the data sheet's.")
@click.option("--gpu-tflops", type=POSITIVE, help="Dense bf16, instead of the data sheet's.")
@click.option("--decode-fraction", type=FRACTION, help="Achieved share of the bandwidth.")
@click.option("--compute-fraction", type=FRACTION, help="Achieved share of the TFLOP/s.")
@click.option(
    "--network",
    type=POSITIVE,
    default=100.0,
    show_default=True,
    help="Gb/s from trainer to samplers.",
)
@click.option(
    "--disk",
    type=POSITIVE,
    default=2.0,
    show_default=True,
    help="GB/s of checkpoints and shared folders.",
)
@click.option(
    "--every",
    type=click.IntRange(1),
    default=25,
    show_default=True,
    help="Steps between checkpoints, and between broadcasts.",
)
@click.option("--node-cores", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--environment-memory", type=POSITIVE, default=1.0, show_default=True, help="GiB; a core has 4."
)
@click.option(
    "--prices",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of prices, instead of the shipped one.",
)
@click.option(
    "--rollouts", type=click.IntRange(1), default=512, show_default=True, help="In one step."
)
@click.option(
    "--turns", type=click.IntRange(1), default=10, show_default=True, help="In one rollout."
)
@click.option(
    "--tokens-per-turn", type=click.IntRange(1), default=400, show_default=True, help="Sampled."
)
@click.option(
    "--observed-per-turn",
    type=click.IntRange(0),
    default=600,
    show_default=True,
    help="Tokens of tool results.",
)
@click.option("--prompt", type=click.IntRange(1), default=2000, show_default=True, help="Tokens.")
@click.option(
    "--environment-seconds", type=NOT_NEGATIVE, default=5.0, show_default=True, help="In one turn."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(model: str | None, simulate: bool, as_json: bool, **options: Any) -> None:
    """Plan a training run: the memory of MODEL on one GPU, its speed (--simulate), or fleets of large models.

    MODEL is a registered model or a folder, whose trainer and sampler share the GPU. Without MODEL, the table is an estimate
    for trainer, samplers and environments; the simulation uses rollouts and updates recorded by MODEL's training on this
    machine.
    """
    from hud.cli.platform_requests import run
    from hud.errors import UsageError

    if simulate and model is None:
        raise UsageError("--simulate takes a MODEL, whose records it reads.")
    if simulate and model is not None:
        run(_simulate(model, options, as_json))
    elif model is not None:
        run(_one_gpu(model, options, as_json))
    else:
        _size(options, as_json)


async def _one_gpu(model: str, options: dict[str, Any], as_json: bool) -> None:
    from hud.cli.output import print_json
    from hud.cli.training.memory_table import as_data, lines, plan_of

    plan = await plan_of(
        model, _machine(options), longest=_work(options).length, training=options["training"]
    )
    if as_json:
        print_json({"model": model, **as_data(plan, options["gpu"])})
    else:
        for line in lines(plan, options["gpu"]):
            click.echo(line)


def _machine(options: dict[str, Any]) -> Machine:
    """Return the accelerator of the command line."""
    given = {
        "memory_gib": options["gpu_memory"],
        "bandwidth_tb": options["gpu_bandwidth"],
        "tflops": options["gpu_tflops"],
        "decode_fraction": options["decode_fraction"],
        "compute_fraction": options["compute_fraction"],
    }
    changed = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(MACHINES[options["gpu"]], **changed)


def _work(options: dict[str, Any]) -> Work:
    """Return the rollouts of the command line."""
    from hud.train.planning.speed import Work

    return Work(
        rollouts=options["rollouts"],
        turns=options["turns"],
        tokens_per_turn=options["tokens_per_turn"],
        observed_per_turn=options["observed_per_turn"],
        prompt=options["prompt"],
        environment_seconds_per_turn=options["environment_seconds"],
        steps=options["steps"] or Work.steps,
    )


def _size(options: dict[str, Any], as_json: bool) -> None:
    from hud.cli.output import print_json
    from hud.cli.training.fleet_table import as_data, lines, plans_of
    from hud.train.planning.prices import read_prices
    from hud.train.planning.sizing import CORE_GIB, CpuNode, Fleet

    cores = options["node_cores"]
    fleet = Fleet(
        machine=_machine(options),
        node=CpuNode(cores, CORE_GIB * cores, options["environment_memory"]),
        network_gbit=options["network"],
        disk_gb=options["disk"],
        preemption=_preemption(options, PER_HOUR),
        every=options["every"],
    )
    work = _work(options)
    prices = read_prices(options["prices"])
    plans = plans_of(work, fleet, options["training"] or "8bit")
    if as_json:
        print_json(as_data(plans, work, fleet, options["gpu"], prices))
    else:
        for line in lines(plans, work, fleet, options["gpu"], prices):
            click.echo(line)


def _preemption(options: dict[str, Any], default: float) -> Preemption:
    """Return the rates of preemption of the command line."""
    nodes, samplers = options["node_preemptions"], options["sampler_preemptions"]
    return Preemption(
        nodes_per_hour=default if nodes is None else nodes,
        samplers_per_hour=default if samplers is None else samplers,
        node_away=options["away"],
        sampler_away=options["away"],
    )


async def _simulate(model: str, options: dict[str, Any], as_json: bool) -> None:
    from hud.cli.output import console, print_json, table
    from hud.train.planning.simulation import simulate

    measured, known, took = await recorded(model, options["job"], options["most"])
    given = {name: options[name] for name in ("steps", "group", "tasks_per_step") if options[name]}
    base = dataclasses.replace(
        known,
        **given,
        samplers=options["samplers"],
        trainers=options["trainers"],
        shared_device=not options["apart"],
        nodes=options["nodes"],
        preemption=_preemption(options, 0.0),
    )
    again = None
    if took is not None:
        again = simulate(measured, dataclasses.replace(known, steps=took[0])).seconds
    setups = [
        dataclasses.replace(base, environments=wanted or _environments(base, lag), max_lag=lag)
        for wanted in options["environments"] or (None,)
        for lag in options["max_lag"] or (base.max_lag,)
    ]
    found = [simulate(measured, setup) for setup in setups]
    if as_json:
        check = took and {"steps": took[0], "seconds": took[1], "simulated": again}
        runs = zip(setups, found, strict=True)
        simulated = [
            {"setup": dataclasses.asdict(setup), "prediction": dataclasses.asdict(one)}
            for setup, one in runs
        ]
        print_json({"model": model, "check": check, "simulated": simulated})
        return
    out = console()
    out.print(
        f"{len(measured.shapes):,} recorded rollouts; a decode step costs {measured.decode.base * 1e3:.2f} ms and "
        f"{measured.decode.each * 1e6:.0f} µs for each sequence; an update {measured.update_seconds:.2f} s."
    )
    if took is not None and again is not None:
        out.print(
            f"Check: {took[0]} steps of that run took {took[1]:.1f} s; simulated {again:.1f} s "
            f"({again / took[1]:.2f} of it)."
        )
    rates = (base.preemption.nodes_per_hour, base.preemption.samplers_per_hour)
    columns = [
        "max lag",
        "rollouts at a time",
        "step",
        "rollouts a second",
        "tokens a second",
        "sampler busy",
        "trainer busy",
        "mean lag",
    ]
    shown = table(*columns, *(["lost rollouts"] if any(rates) else []))
    for setup, one in zip(setups, found, strict=True):
        cells = [
            str(setup.max_lag),
            str(setup.environments),
            f"{one.seconds / setup.steps:.2f} s",
            f"{one.rollouts_per_second:,.1f}",
            f"{one.tokens_per_second:,.0f}",
            f"{one.sampler_busy:.0%}",
            f"{one.trainer_busy:.0%}",
            f"{one.lag:.1f}",
        ]
        shown.add_row(*cells, *([str(one.lost)] if any(rates) else []))
    out.print(shown)
    if any(rates):
        out.print(
            f"Preemptions an hour: {rates[0]:g} of each of {base.nodes} nodes, {rates[1]:g} of each of {base.samplers} samplers; "
            f"replaced after {options['away']:g} s."
        )


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
    from hud.train.planning.setup import Setup

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
