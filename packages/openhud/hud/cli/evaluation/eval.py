"""`hud eval`: play tasks with an agent, with progress and a report.

It parses the command line and calls `Taskset.run`, which plays, grades and records.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hud.cli.evaluation.judge_options import JudgeOptions, judge_options
from hud.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.cli.command_line import EvalCommand
    from hud.environment.templates.task import Provider
    from hud.eval import RunSummary, Taskset
    from hud.review.judge_method import Method

ON_THIS_MACHINE = ("local", "fork", "subprocess")
"""Runtimes in which tools execute on this machine."""
MANY_PAID_RUNS = 50
"""Number of runs with a provider's model from which the command asks for confirmation."""
FULL_STEPS = 100
"""Model calls in one run under --full."""
HARNESS = "harness"
"""The agent that is any program."""
FAILED = 1
"""Exit code if no run was measured, or the agent failed in every one."""
SECONDS = click.FloatRange(min=0, min_open=True)


@click.command(
    name="eval",
    epilog="Without --all (or --full), only the first task is played; of a benchmark, all are. AGENT is the slug of a "
    "model; claude, openai, operator, gemini or gemini_cua, with a model of theirs or the one that --model names; "
    "openai_compatible with --model, or --model http://host/v1 alone; an installed program with --model: aider, claude-code, codex, gemini-cli, "
    "mini-swe-agent, opencode or qwen-code, or harness with --command; human, to play yourself; nothing, which does nothing; oracle, which plays a "
    "benchmark's own solutions; or path.py:agent for a script.",
)
@click.option(
    "--benchmark",
    metavar="NAME",
    help="Play a benchmark in place of TASKS; `list` lists them.",
)
@click.option(
    "--split", type=click.Choice(["train", "held-out"]), help="Its tasks.  [default: held-out]"
)
@click.argument("source", metavar="[TASKS]", required=False)
@click.argument("agent", required=False)
@click.option(
    "-m",
    "--model",
    help="Model, where AGENT is a kind of agent, or a class in a file; or the address of a server of chat completions, "
    "http://host/v1, whose one model plays (of several: -c model=NAME).",
)
@click.option(
    "--command",
    "program",
    metavar="LINE",
    help="With the agent harness: the program's command line, such as 'agent --url {base_url} {prompt_file}' "
    "(docs/agent-programs.md).",
)
@click.option(
    "--agent-url",
    metavar="URL",
    help="In place of AGENT: address of an agent's server, to which each run is posted (docs/agent-programs.md).",
)
@click.option("--all", "everything", is_flag=True, help="Play every task.")
@click.option(
    "--full",
    is_flag=True,
    help=f"Play every task to its end: --all --auto-respond --max-steps {FULL_STEPS}.",
)
@click.option(
    "--group", "--group-size", type=click.IntRange(min=1), help="Runs of each task.  [default: 1]"
)
@click.option("--task-ids", help="Play only these: slugs or positions (from 0), comma-separated.")
@click.option(
    "--max-concurrent",
    type=click.IntRange(min=1),
    help="Runs at a time.  [default: 32; with --remote, as many as the platform plays]",
)
@click.option(
    "--max-steps",
    type=click.IntRange(min=1),
    help="Model calls in one run.  [default: 10; operator, gemini_cua: 50]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Tokens in one turn of the model.  [default: 1024 for your policies, else the agent's]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    help="Sampling temperature; 0: greedy.  [default: the model's; 1 for your policies]",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Sample among the likeliest tokens with this probability in all. Such runs are not trained on.  [default: 1]",
)
@click.option("--auto-respond", is_flag=True, help="Answer the agent's questions: decide alone.")
@click.option("--rollout-timeout", type=SECONDS, help="Seconds for one run.")
@click.option("--agent-timeout", type=SECONDS, help="Seconds for the agent; what it has is graded.")
@click.option("--tool-timeout", type=SECONDS, help="Seconds for one tool call; the agent goes on.")
@click.option(
    "--runtime",
    default=None,
    metavar="KIND",
    help="local, fork, subprocess, container, hud, hosted, tcp://host:port, or an installed one.  [default: fork for a Python source]",
)
@click.option("--remote", is_flag=True, help="Play on the platform: --runtime hosted.")
@click.option(
    "-g",
    "--gateway",
    is_flag=True,
    help="Ask models through the gateway, even where the provider's own key is set.",
)
@click.option(
    "-c", "--config", "settings", multiple=True, metavar="KEY=VALUE", help="Agent settings."
)
@click.option(
    "--subagent",
    "subagents",
    multiple=True,
    metavar="NAME=MODEL",
    help="Who plays a subagent, by its tool's name or the model that its environment gives it.",
)
@judge_options
@click.option("--resume", metavar="JOB", help="Play only what is missing from this job.")
@click.option("-v", "--verbose", count=True, help="Show answers; -vv shows tracebacks too.")
@click.option("-q", "--quiet", is_flag=True, help="Print the summary alone, without progress.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, at the end.")
@click.pass_context
def command(
    context: click.Context,
    source: str | None,
    agent: str | None,
    benchmark: str | None,
    split: str | None,
    model: str | None,
    program: str | None,
    agent_url: str | None,
    everything: bool,
    full: bool,
    group: int | None,
    task_ids: str | None,
    max_concurrent: int | None,
    max_steps: int | None,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    auto_respond: bool,
    rollout_timeout: float | None,
    agent_timeout: float | None,
    tool_timeout: float | None,
    runtime: str | None,
    remote: bool,
    gateway: bool,
    settings: tuple[str, ...],
    subagents: tuple[str, ...],
    judge: str | None,
    judge_by: Method | None,
    criteria: tuple[str, ...],
    judge_share: float | None,
    resume: str | None,
    verbose: int,
    quiet: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Play TASKS (.py, .json, .jsonl, a folder, or the platform's taskset) with AGENT, and grade what it does."""
    from hud.agents.agent_forms import HUMAN, is_program
    from hud.cli.command_line import EvalCommand, pairs
    from hud.cli.evaluation.benchmarks import print_benchmarks
    from hud.cli.evaluation.player import (
        is_paid,
        is_scripted,
        parse_settings,
        player,
    )
    from hud.cli.evaluation.task_source import chosen, task_source

    if benchmark == "list":
        print_benchmarks(as_json=as_json)
        return 0
    if benchmark is not None:
        if agent is not None:
            raise click.UsageError(f"--benchmark stands for TASKS; give the agent alone: {agent}")
        source, agent = None, source
    if agent_url is not None:
        if agent is not None:
            raise click.UsageError(f"--agent-url stands for AGENT; leave one of them out: {agent}")
        agent = agent_url
    parsed = parse_settings(settings)
    if program is not None:
        if agent != HARNESS:
            raise click.UsageError(f"--command goes with the agent {HARNESS}.")
        parsed["command"] = program
    if full and not is_scripted(agent):
        max_steps = max_steps or FULL_STEPS
        auto_respond = agent is None or not is_program(agent)
    options = {
        "max_steps": max_steps,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "auto_respond": auto_respond or None,
        "gateway": gateway or None,
        "timeout_seconds": agent_timeout,
        "tool_timeout_seconds": tool_timeout,
    }
    agent_options = {name: value for name, value in options.items() if value is not None}
    chosen_source = task_source(source, benchmark, split)
    who = player(agent, model, {**agent_options, **parsed}, oracle=chosen_source.oracle)
    if subagents:
        who.subagents = {**who.subagents, **dict(pairs("subagent", "NAME=MODEL", subagents))}
    of_all = everything or full or resume is not None or benchmark is not None
    tasks = chosen(chosen_source.tasks, task_ids, of_all)
    many = len(tasks) * (group or 1)
    if is_paid(agent, model) and not yes and many >= MANY_PAID_RUNS:
        click.confirm(f"Play {many} runs with {who.model_name}?", abort=True, err=True)
    if judge is not None and resume is not None:
        raise click.UsageError(
            "A judge compares all runs of a task; play the rest without, then: hud grade JOB --judge"
        )
    if judge is not None and (remote or runtime == "hosted"):
        raise click.UsageError("A judge grades runs that are played here; leave --remote out.")
    if runtime in (None, *ON_THIS_MACHINE) and not remote:
        _warn_of_shells(tasks)
    return asyncio.run(
        _play(
            tasks,
            who,
            provider("hosted" if remote else runtime, chosen_source.path),
            resume=resume,
            group=group,
            max_concurrent=1 if agent == HUMAN else max_concurrent,
            rollout_timeout=rollout_timeout,
            tool_timeout=tool_timeout,
            verbose=verbose,
            quiet=quiet or as_json,
            as_json=as_json,
            again=EvalCommand.typed(context, tasks[0].slug),
            alone=agent == HUMAN,
            judging=JudgeOptions.of(judge, judge_by, criteria, judge_share),
        )
    )


def _warn_of_shells(tasks: Taskset) -> None:
    """Warn about tools that execute an agent's commands on this machine as the current user."""
    from hud.eval.runtimes.host_shells import shells_outside

    for name, tools in shells_outside(tasks).items():
        click.echo(
            f"{', '.join(tools)} of environment {name!r} executes on this machine, as your user: processes isolate "
            "faults, not attackers. For commands of an agent, declare env.workspace() (docs/workspace.md).",
            err=True,
        )


def provider(runtime: str | None, source: Path | None) -> Provider | None:
    """Return the runtime of the option; None: the default of the evaluation.

    Without `source`, environments are loaded from their files.
    """
    from hud.eval.runtimes.registry import runtime_named

    if runtime is None:
        python = source is None or source.suffix == ".py" or source.is_dir()
        runtime = "fork" if python else ""
    return runtime_named(runtime, source) if runtime else None


async def _play(
    tasks: Taskset,
    who: Agent,
    where: Provider | None,
    *,
    resume: str | None,
    group: int | None,
    max_concurrent: int | None,
    rollout_timeout: float | None,
    tool_timeout: float | None,
    verbose: int,
    quiet: bool,
    as_json: bool,
    again: EvalCommand,
    alone: bool,
    judging: JudgeOptions | None,
) -> int:
    from hud.cli.evaluation.progress import LeavingStop, SpokenStop, progress
    from hud.cli.evaluation.report import job_json, print_figures, print_job
    from hud.cli.evaluation.resuming import open_job
    from hud.cli.output import console, print_json
    from hud.errors import StoreError
    from hud.eval import HostedRuntime
    from hud.eval.rollouts import prepare
    from hud.eval.runtimes.rollout_runtime import as_runtime
    from hud.eval.snapshots.snapshot_folder import SnapshotFolder
    from hud.settings import load

    await prepare(who, where)  # A failed preparation must not leave an empty job.
    judge = None if judging is None else await judging.open(group or 1, len(tasks), quiet=quiet)
    job, finished = await open_job(resume, tasks, group, who.model_name)
    missing = len(tasks) * job.group - len(finished)
    snapshots = SnapshotFolder(load().home / "snapshots", job.id)
    stop = SpokenStop()
    if isinstance(where, HostedRuntime):
        stop = LeavingStop(where.detach)
        # The platform decides on the concurrency of its queue.
        max_concurrent = max_concurrent or max(1, missing)
    try:
        with (
            stop.on_interrupt(),
            progress(
                job, max(0, missing), stop, quiet=quiet, verbose=verbose, plain=alone
            ) as watch,
        ):
            await tasks.run(
                who,
                runtime=where,
                job=job,
                max_concurrent=max_concurrent,
                rollout_timeout=rollout_timeout,
                tool_timeout=tool_timeout,
                finished=finished,
                stop=stop,
                on_run=watch.ended,
                on_wait=watch.say,
                judge=judge,
                snapshots=snapshots,
            )
        await snapshots.clear()
    finally:
        try:
            if not stop.left:
                await job.finish()
        except StoreError:
            if job.runs and not as_json:
                print_figures(
                    job, finished
                )  # The runs may have taken hours, and its job cannot be shown again yet.
            raise
        await as_runtime(where).aclose()
        await who.aclose()
        if judge is not None:
            await judge.aclose()
    if stop.left:
        short_id = job.id[:12]
        console().print(f"Follow it: hud jobs {short_id} · Stop it: hud cancel {short_id}")
        return 0
    if as_json:
        print_json(job_json(job, finished))
    else:
        print_job(job, finished, again)
        for line in [] if judge is None else judge.lines():
            console().print(line, markup=False)
    if job.interrupted or stop.cancelled:
        return INTERRUPTED
    runs = [*finished, *(run.summary() for run in job.runs)]
    return 0 if any(_played(run) for run in runs) else FAILED


def _played(run: RunSummary) -> bool:
    """True if the run is measured and its agent played it to an end; a failure of the agent has the reward 0."""
    return run.reward is not None and run.failure_kind != "agent"
