"""`hud plan MODEL --simulate`: the speed of a training, simulated from its records."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hud.train.planning.measured import Measured
    from hud.train.planning.preemption import Preemption
    from hud.train.planning.setup import Setup


async def show(model: str, preemption: Preemption, options: dict[str, Any], as_json: bool) -> None:
    """Print the simulated speed of a model's training under each number of rollouts and each lag of the options."""
    from hud.cli.output import console, print_json, table
    from hud.train.planning.simulation import simulate

    measured, setup_of_job, took = await recorded(model, options["job"], options["most"])
    changed = {
        name: options[name] for name in ("steps", "group", "tasks_per_step") if options[name]
    }
    base = dataclasses.replace(
        setup_of_job,
        **changed,
        samplers=options["samplers"],
        trainers=options["trainers"],
        shared_device=not options["apart"],
        nodes=options["nodes"],
        preemption=preemption,
    )
    again = None
    if took is not None:
        again = simulate(measured, dataclasses.replace(setup_of_job, steps=took[0])).seconds
    setups = [
        dataclasses.replace(base, environments=wanted or _environments(base, lag), max_lag=lag)
        for wanted in options["environments"] or (None,)
        for lag in options["max_lag"] or (base.max_lag,)
    ]
    predictions = [simulate(measured, setup) for setup in setups]
    if as_json:
        check = took and {"steps": took[0], "seconds": took[1], "simulated": again}
        runs = zip(setups, predictions, strict=True)
        simulated = [
            {"setup": dataclasses.asdict(setup), "prediction": dataclasses.asdict(prediction)}
            for setup, prediction in runs
        ]
        print_json({"model": model, "check": check, "simulated": simulated})
        return
    out = console()
    out.print(
        f"{len(measured.shapes):,} recorded rollouts; a decode step costs {measured.decode.base * 1e3:.2f} ms and "
        f"{measured.decode.per_sequence * 1e6:.0f} µs for each sequence; an update {measured.update_seconds:.2f} s."
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
    for setup, prediction in zip(setups, predictions, strict=True):
        cells = [
            str(setup.max_lag),
            str(setup.environments),
            f"{prediction.seconds / setup.steps:.2f} s",
            f"{prediction.rollouts_per_second:,.1f}",
            f"{prediction.tokens_per_second:,.0f}",
            f"{prediction.sampler_busy:.0%}",
            f"{prediction.trainer_busy:.0%}",
            f"{prediction.lag:.1f}",
        ]
        shown.add_row(*cells, *([str(prediction.lost)] if any(rates) else []))
    out.print(shown)
    if any(rates):
        out.print(
            f"Preemptions an hour: {rates[0]:g} of each of {base.nodes} nodes, {rates[1]:g} of each of {base.samplers} samplers; "
            f"replaced after {options['away']:g} s."
        )


def _environments(setup_of_job: Setup, max_lag: int) -> int:
    """Return the concurrent rollouts of the run with another `max_lag`: the configured number, or the default."""
    from hud.train.config import rollouts_at_once

    by_default = setup_of_job.environments == rollouts_at_once(setup_of_job.max_lag)
    return rollouts_at_once(max_lag) if by_default else setup_of_job.environments


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
    record = await client.get("/v2/models/resolve", params={"model": model})
    runs = (await client.get("/v2/training-runs", params={"model": record["id"]}))["items"]
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
