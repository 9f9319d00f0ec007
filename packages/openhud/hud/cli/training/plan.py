"""`hud plan`: estimates of a training run's memory, cost and speed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hud.engine.memory.model_shapes import MACHINES
from hud.engine.memory.trainer_memory import TRAININGS
from hud.train.planning.preemption import Preemption

if TYPE_CHECKING:
    from hud.engine.memory.model_shapes import Machine
    from hud.train.planning.speed import Work

POSITIVE = click.FloatRange(0, min_open=True)
NOT_NEGATIVE = click.FloatRange(0)
FRACTION = click.FloatRange(0, 1, min_open=True)

PER_HOUR = 0.1
"""Default preemptions of a spot machine an hour in the table."""


@click.command(
    name="plan",
    epilog="""Memory of MODEL, or of a folder, on one GPU:  hud plan my-model --gpu H100

Each stage of a recipe, with its subagents:  hud plan --config recipe.toml --gpu H100

Fleets of large models, and their cost:  hud plan --training 8bit

Effect of asynchronous sampling, or of preemption, on an existing run:  hud plan my-policy --simulate --max-lag 2""",
)
@click.argument("model", required=False)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of a training or a recipe, as `hud train --config` takes it.",
)
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
def command(
    model: str | None, config: Path | None, simulate: bool, as_json: bool, **options: Any
) -> None:
    """Plan a training run: the memory of MODEL on one GPU, its speed (--simulate), or fleets of large models.

    MODEL is a registered model or a folder, whose trainer and sampler share the GPU; --config plans a training with its
    subagents, and every stage of a recipe. Without either, the table is an estimate
    for trainer, samplers and environments; the simulation uses rollouts and updates recorded by MODEL's training on this
    machine.
    """
    from hud.cli.platform_requests import run
    from hud.errors import UsageError

    if config is not None and (model is not None or simulate or options["training"]):
        raise UsageError(
            "--config names the models, and they have their own settings; give neither MODEL, --simulate nor --training."
        )
    if simulate and model is None:
        raise UsageError("--simulate takes a MODEL, whose records it reads.")
    if simulate and model is not None:
        from hud.cli.training.plan_simulation import show

        run(show(model, _preemption(options, 0.0), options, as_json))
    elif config is not None:
        run(_stages(config, options, as_json))
    elif model is not None:
        run(_one_gpu(model, options, as_json))
    else:
        _size(options, as_json)


async def _one_gpu(model: str, options: dict[str, Any], as_json: bool) -> None:
    from hud.cli.output import print_json
    from hud.cli.training.memory_table import as_data, lines, plan_of, rates_of

    plan = await plan_of(
        model, _machine(options), longest=_work(options).length, training=options["training"]
    )
    rates = await rates_of(model, plan, options["training"])
    if as_json:
        learning = {"reward": rates.reward, "supervised": rates.supervised, "pairs": rates.pairs}
        print_json({"model": model, **as_data(plan, options["gpu"]), "learning_rates": learning})
        return
    for line in lines(plan, options["gpu"]):
        click.echo(line)
    click.echo(
        f"Default learning rates: {rates.reward:g} by reward, {rates.supervised:g} supervised, {rates.pairs:g} for pairs"
    )


async def _stages(config: Path, options: dict[str, Any], as_json: bool) -> None:
    from hud.cli.output import print_json
    from hud.cli.training.stage_table import as_data, lines, stages_of

    stages = await stages_of(config, _machine(options))
    if as_json:
        print_json(as_data(stages, options["gpu"]))
    else:
        for line in lines(stages, options["gpu"]):
            click.echo(line)


def _machine(options: dict[str, Any]) -> Machine:
    """Return the accelerator of the command line."""
    figures = {
        "memory_gib": options["gpu_memory"],
        "bandwidth_tb": options["gpu_bandwidth"],
        "tflops": options["gpu_tflops"],
        "decode_fraction": options["decode_fraction"],
        "compute_fraction": options["compute_fraction"],
    }
    changed = {name: value for name, value in figures.items() if value is not None}
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
