"""`HarborEnvironment`: task folders of Harbor, played in a workspace and graded by their own tests."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from hud.environment import Environment, Task, WorkspaceLimits
from hud.environment.current_run import run_of
from hud.environment.run import EnvironmentRun
from hud.environment.workspace.files.transfer import copy_in, empty, read
from hud.environment.workspace.sandbox.mounts import taken
from hud.environment.workspace.sandbox.root_image import SandboxImage
from hud.environment.workspace.workspace import OpenWorkspace, Workspace
from hud.errors import AgentFault, EnvironmentFault, GraderFault, RolloutError, UsageError
from hud.eval.runtimes.containers.health_check import HealthCheck
from hud.graders import EvaluationResult, SubScore
from hud.graders.command import CommandOutcome
from hud.trace import ToolCall
from hud_integrations.containers.compose.compose_image import compose_image
from hud_integrations.containers.image_build import build_engine_image, build_image
from hud_integrations.harbor.step_progress import StepProgress, reward_of
from hud_integrations.harbor.task_folder import (
    WORKDIR,
    Copied,
    StepFolder,
    TaskFolder,
    read_folders,
)
from hud_integrations.harbor.verifier.separate_verifier import SeparateVerifier
from hud_integrations.harbor.verifier.verifier_settings import VerifierSettings

TESTS, SOLUTION, LOGS = "/tests", "/solution", "/logs"
VERIFIER = f"{LOGS}/verifier"
TEST_COMMAND = f"exec bash {TESTS}/test.sh"
REWARD_FILES = ("reward.json", "reward.txt")
_PRESENT = (
    f"cd {VERIFIER} && [ -r . ] && [ -w . ] || exit 1; "
    f'for name in {" ".join(REWARD_FILES)}; do if [ -e "$name" ] || [ -L "$name" ]; then '
    'echo "$name"; [ -d "$name" ] || [ -w "$name" ] || exit 1; fi; done'
)
"""Prints the names of the reward files. Fails where the tests could not have replaced them."""
NEXT = (
    "\n\nThis task has {count} steps, of which this is the first. When it is done, call finish_step: it returns the next "
    "one. What you have not finished then is graded as it is."
)
"""Added to the first step's instruction."""
SLACK_SECONDS = 60.0
"""Time for setup and grading in addition to the limits of the agent and of the verifier, in seconds."""
_MEMORY_MB, _OUTPUT = 2048.0, 2000


class HarborEnvironment(Environment):
    """Harbor tasks of one folder: template `task`, a workspace with their files.

    The agent has a shell. Tests are copied into the workspace after the agent's end, and solutions only by `oracle`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        name: str = "harbor",
        reward_range: tuple[float, float] = (0.0, 1.0),
        images: bool = False,
        engine: bool = False,
        spares: int | None = None,
    ) -> None:
        """`reward_range` bounds what the tests write. `images`: tasks are played in the image of their Dockerfile; `engine`: in
        containers of it, by docker or podman, with the services of their Compose file. `spares` are workspaces that are up before
        a run needs them.

        Raises `UsageError` for tasks that need different sandboxes, and for an image that cannot be built.
        """
        super().__init__(name, reward_range=reward_range)
        self.source_file = sys._getframe(1).f_code.co_filename
        folders = [
            task
            for task in read_folders(Path(folder), images or engine, services=engine)
            if not task.refused
        ]
        if not folders or len({task.settings for task in folders}) > 1:
            raise UsageError(
                f"{folder} must hold tasks that have one image, working directory, network and variables; `hud import` sorts them."
            )
        self._tasks = {task.name: task for task in folders}
        first = folders[0]
        image = _image(first, engine=engine)
        for task in folders:
            task.workdir = task.workdir or _workdir_of(image)
        hosts = first.allowed_hosts
        limits = WorkspaceLimits(
            memory_mb=max([_MEMORY_MB, *(task.memory_mb or 0.0 for task in folders)]),
            processors=first.cpus or WorkspaceLimits.processors,
            seconds=max(map(_seconds, folders)),
        )
        self._shell = self.add(
            Workspace(
                guest_path=first.workdir,
                folders=(TESTS, SOLUTION, LOGS),
                network=hosts != (),
                allowed_hosts=hosts or None,
                env=first.variables,
                image=image,
                limits=limits,
                spares=spares,
            )
        )
        self._verifiers = {
            task.name: SeparateVerifier(task.verifier, engine=engine)
            for task in folders
            if task.verifier is not None
        }
        self._progress: WeakKeyDictionary[EnvironmentRun, StepProgress] = WeakKeyDictionary()
        self.template(id="task")(self._episode())
        if first.steps:
            self.tool(self._finish_step())

    def all_tasks(self) -> list[Task]:
        """Return a task for each folder."""
        return [self._task(folder) for folder in self._tasks.values()]

    def folder_of(self, task: Task) -> Path:
        """Return the folder of a task. Raises `UsageError` for an unknown one."""
        return self._folder(task.args.get("name", "")).folder

    def _folder(self, name: str) -> TaskFolder:
        if name not in self._tasks:
            raise UsageError(f"There is no Harbor task {name!r} in environment {self.name!r}.")
        return self._tasks[name]

    def _task(self, folder: TaskFolder) -> Task:
        task = self.templates["task"](name=folder.name)
        task.slug = folder.name
        task.columns = folder.metadata or None
        task.runtime_config = {"limits": {"run_timeout_s": _seconds(folder)}}
        return task

    def _episode(self) -> Any:
        async def task(name: str) -> AsyncGenerator[Any, Any]:
            """Do what a task's instruction says."""
            folder = self._folder(name)
            for copied in folder.copies:
                await self._shell.copy_in(copied.source, copied.target)
            await self._wait_until_healthy(folder.health_check)
            if not folder.steps:
                yield folder.instruction
                yield await self._graded(folder)
                return
            run = run_of(self)
            assert run is not None
            progress = self._progress[run] = StepProgress(folder)
            await self._set_up(progress)
            yield folder.steps[0].instruction + NEXT.format(count=len(folder.steps))
            if progress.fault is not None:
                raise progress.fault
            while progress.step is not None:  # The agent may have ended before.
                await self._verify_step(progress)
            yield _of_steps(progress)

        return task

    def _finish_step(self) -> Any:
        async def finish_step() -> str:
            """End the current step of the task. Its tests run, and the next step's instruction is returned."""
            run = run_of(self)
            progress = None if run is None else self._progress.get(run)
            if progress is None:
                return "This task has no steps."
            async with progress.moving:
                if progress.step is not None and progress.fault is None:
                    await self._verify_within(progress)
            if progress.fault is not None or progress.step is None:
                return "The task is over: there is no step left."
            return progress.step.instruction

        return finish_step

    async def _verify_within(self, progress: StepProgress) -> None:
        """Verify the current step during the run: meanwhile the agent starts no process, and no tests are left to it."""
        opened = self._shell.opened
        await opened.begin_grading()
        try:
            await self._verify_step(progress)
        except RolloutError as fault:
            progress.fault = fault
        finally:
            for place in (TESTS, VERIFIER):
                await self._shell.empty(place)
            await opened.begin_task()

    async def _verify_step(self, progress: StepProgress) -> None:
        """Run the tests of the current step, and prepare the next one."""
        step = progress.step
        assert step is not None
        folders = [progress.folder.folder / "tests", step.folder / "tests"]
        ended = await self._tested(progress.folder, folders, step.verifier_seconds, step.variables)
        if ended.exit_code is None:
            sentence = (
                f"The tests of step {step.name!r} of Harbor task {progress.folder.name!r} did not end within "
                f"{step.verifier_seconds:g} s: raise timeout_sec in its [steps.verifier]."
            )
            raise AgentFault(sentence) if self._shell.was_used else GraderFault(sentence)
        progress.verified(step, await self._rewards(self._shell.opened, cut_short=ended.signalled))
        await self._set_up(progress)

    async def _set_up(self, progress: StepProgress) -> None:
        """Copy the files of the current step, if any, and run its `setup.sh`."""
        step = progress.step
        if step is None:
            return
        if (step.folder / "workdir").is_dir():
            await self._shell.copy_in(step.folder / "workdir", progress.folder.workdir)
        if (step.folder / "workdir/setup.sh").is_file():
            ended = await self._shell.bash("exec bash setup.sh", cwd=progress.folder.workdir)
            if ended.exit_code != 0:
                sentence = f"setup.sh of step {step.name!r} ended with {ended.exit_code}: {ended.stderr[-200:]}"
                raise (AgentFault if self._shell.was_used else EnvironmentFault)(sentence)
        await self._wait_until_healthy(step.health_check)

    async def _wait_until_healthy(self, check: HealthCheck | None) -> None:
        """Wait for a health check. Raises a fault if it stays unhealthy: the agent's, if it used the shell."""
        if check is None:
            return
        try:
            await check.wait(lambda argv, seconds: self._shell.bash(shlex.join(argv), timeout=seconds))  # fmt: skip
        except EnvironmentFault as fault:
            if self._shell.was_used:
                raise AgentFault(str(fault)) from None
            raise

    async def _tested(
        self,
        folder: TaskFolder,
        tests: Sequence[Path],
        seconds: float,
        variables: Mapping[str, str],
    ) -> CommandOutcome:
        """Run tests, the later folders laid over the earlier ones, where nothing of the agent's runs."""
        await self._shell.end_all()
        for place in (TESTS, VERIFIER):
            await self._shell.empty(place)
        for source in tests:
            if source.is_dir():
                await self._shell.copy_in(source, TESTS)
        ended = await self._shell.bash(
            TEST_COMMAND, cwd=folder.workdir, timeout=seconds, env=variables
        )
        # A program of the agent, started by the tests, may write later.
        await self._shell.end_all()
        return ended

    async def _graded(self, folder: TaskFolder) -> EvaluationResult:
        """Run the tests of a task, and return the rewards that they wrote."""
        if folder.verifier is not None:
            return await self._graded_apart(folder, folder.verifier)
        ended = await self._tested(
            folder,
            [folder.folder / "tests"],
            folder.verifier_seconds,
            folder.variables_of("verifier"),
        )
        if ended.exit_code is None:
            raise await self._time_out(folder)
        rewards = await self._rewards(self._shell.opened, cut_short=ended.signalled)
        return _result(ended, rewards)

    async def _graded_apart(
        self, folder: TaskFolder, settings: VerifierSettings
    ) -> EvaluationResult:
        """Run the tests of a task in a workspace of their own, with the agent's artifacts."""
        run = run_of(self)
        assert run is not None
        verifier = self._verifiers[folder.name]
        await self._shell.end_all()
        for command, seconds in settings.hooks:
            await self._shell.bash(command, cwd=folder.workdir, timeout=seconds, alone=True)
        async with verifier.open(run, self._shell.opened.sandbox) as opened:
            ended = await _run_tests(opened, folder, verifier.workdir)
            if ended.exit_code is not None:
                return _result(ended, await self._rewards(opened, cut_short=ended.signalled))
        sentence = f"The tests of Harbor task {folder.name!r} did not end within {folder.verifier_seconds:g} s"
        if self._shell.was_used:
            async with verifier.open(run, None) as untouched:
                ended = await _run_tests(untouched, folder, verifier.workdir)
            if ended.exit_code is not None:
                raise AgentFault(
                    f"{sentence} on the agent's artifacts; without them they end in time."
                )
        raise GraderFault(f"{sentence}: raise timeout_sec in [verifier] of its task.toml.")

    async def _rewards(self, opened: OpenWorkspace, *, cut_short: bool) -> dict[str, float]:
        """Return the rewards in `reward.json`, else in `reward.txt`, as Harbor does.

        A missing, unusable or contradictory file is the agent's failure if it used the shell, as its programs can cause that; so
        are tests that a signal cut short.
        """
        parsed = []
        try:
            if cut_short:
                raise GraderFault("The tests were ended by a signal.")
            looked = await opened.bash(_PRESENT, cwd=None, timeout=60.0, alone=False, env=None)
            if looked.exit_code != 0:
                raise GraderFault(
                    f"{VERIFIER}, or a reward in it, cannot be written: it may not be the tests'."
                )
            present = looked.stdout.splitlines()
            for name in REWARD_FILES:
                try:
                    content = await read(opened.sandbox, f"{VERIFIER}/{name}")
                except FileNotFoundError as error:
                    opened.check()
                    if name in present:
                        raise GraderFault(f"The tests' {name} is no file: {error}") from error
                    continue
                parsed.append(parse_rewards(name, content))
            low, high = self.reward_range
            rewards = {reward_of(by_name) for by_name in parsed}
            if not parsed:
                raise GraderFault("The tests wrote neither reward.json nor reward.txt.")
            if len(rewards) > 1:
                raise GraderFault("The tests wrote one reward to reward.json, and another one to reward.txt.")  # fmt: skip
            if not low <= max(rewards) <= high:
                raise GraderFault(
                    f"The tests wrote the reward {max(rewards):g}, outside of [{low:g}, {high:g}]; declare "
                    "HarborEnvironment(reward_range=(low, high))."
                )
        except GraderFault as fault:
            if self._shell.was_used:
                raise AgentFault(f"{fault} The agent was at work there before.") from fault
            raise
        return parsed[0]

    async def _time_out(self, folder: TaskFolder) -> AgentFault | GraderFault:
        """Return the failure of tests that did not end: the agent's only if they end on the task's own files."""
        sentence = f"The tests of Harbor task {folder.name!r} did not end within {folder.verifier_seconds:g} s"
        run = run_of(self)
        if run is None or not self._shell.was_used:
            return GraderFault(f"{sentence}: raise timeout_sec in [verifier] of its task.toml.")
        async with self._shell.open(run) as untouched:
            for copied in (*folder.copies, Copied(folder.folder / "tests", TESTS)):
                await copy_in(untouched.sandbox, str(copied.source), copied.target)
            await empty(untouched.sandbox, VERIFIER)
            ended = await _run_tests(untouched, folder, folder.workdir)
        if ended.exit_code is None:
            return GraderFault(
                f"{sentence}, nor without the agent's work: raise timeout_sec in [verifier] of its task.toml."
            )
        return AgentFault(f"{sentence} on what the agent left; without its work they end in time.")

    async def oracle(self, run: Any) -> str:
        """Play a task with its own solution: an agent for `hud eval`. Raises `UsageError` for a task without one."""
        folder = self._folder(run.task.args["name"])
        if not folder.steps:
            return await self._solve(run, folder, folder.folder, _seconds(folder))
        for step in folder.steps:
            ended = await self._solve(run, folder, step.folder, step.agent_seconds or 3600.0)
            await run.call_tool(ToolCall(id=step.name, name="finish_step"))
        return ended

    async def _solve(self, run: Any, folder: TaskFolder, place: Path, seconds: float) -> str:
        """Copy and run the solution of a task or step. Raises `UsageError` without one."""
        solution = place / "solution"
        if not (solution / "solve.sh").is_file():
            raise UsageError(
                f"Harbor task {folder.name!r} has no {solution.relative_to(folder.folder)}/solve.sh."
            )
        shell = await run.open("ssh")
        await shell.run(f"rm -rf {SOLUTION}/*")
        for path in sorted(path for path in solution.rglob("*") if path.is_file()):
            target = f"{SOLUTION}/{path.relative_to(solution).as_posix()}"
            await shell.run(f"mkdir -p {shlex.quote(str(Path(target).parent))}")
            await shell.write(target, path.read_bytes())
        variables = "".join(
            f"{key}={shlex.quote(value)} " for key, value in folder.variables_of("solution").items()
        )
        ended = await shell.run(f"{variables}bash {SOLUTION}/solve.sh", timeout=seconds)
        return f"solve.sh ended with {ended.exit_status}"


def _of_steps(progress: StepProgress) -> EvaluationResult:
    steps = progress.folder.steps
    return EvaluationResult(
        reward=progress.reward(),
        info={
            "rewards": {
                step.name: earned for step, earned in zip(steps, progress.rewards, strict=False)
            }
        },
        subscores=[
            SubScore(name=step.name, value=min(reward_of(earned), 1.0), weight=1.0)
            for step, earned in zip(steps, progress.rewards, strict=False)
        ],
    )


def parse_rewards(name: str, content: bytes) -> dict[str, float]:
    """Return the rewards in `reward.json` or `reward.txt`, by name. Raises `GraderFault` for anything but finite numbers."""
    try:
        if name == "reward.txt":
            parsed: Any = float(content)
        else:
            parsed = json.loads(content)
        named = parsed if isinstance(parsed, dict) else {"reward": parsed}
        if any(isinstance(value, bool | str) or value is None for value in named.values()):
            raise ValueError("a value is no number")
        rewards = {str(key): float(value) for key, value in named.items()}
        if not rewards or not all(map(math.isfinite, rewards.values())):
            raise ValueError("no finite number")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise GraderFault(f"The tests wrote no rewards to {name}, but {content[:200]!r}: {error}.") from None  # fmt: skip
    return rewards


async def _run_tests(opened: OpenWorkspace, folder: TaskFolder, workdir: str) -> CommandOutcome:
    """Run a task's tests in a workspace that has them; `exit_code` None: they did not end in time."""
    return await opened.bash(
        TEST_COMMAND,
        cwd=workdir,
        timeout=folder.verifier_seconds,
        alone=False,
        env=folder.variables_of("verifier"),
    )


def _result(ended: CommandOutcome, rewards: Mapping[str, float]) -> EvaluationResult:
    return EvaluationResult(
        reward=reward_of(rewards),
        info={
            "exit_code": ended.exit_code,
            "stdout": ended.stdout[-_OUTPUT:],
            "stderr": ended.stderr[-_OUTPUT:],
            "rewards": dict(rewards),
        },
        subscores=[
            SubScore(name=key, value=value, weight=1.0)
            for key, value in rewards.items()
            if len(rewards) > 1 and value <= 1.0
        ]
        or None,
    )


def _image(task: TaskFolder, *, engine: bool) -> SandboxImage | None:
    """Return the image of a task's workspace, built if it is not yet; None: this machine's programs."""
    if task.dockerfile is None:
        return None
    if task.has_services:
        return compose_image(task.compose_file, build=task.dockerfile or None)
    return (build_engine_image if engine else build_image)(task.context, task.dockerfile)


def _workdir_of(image: SandboxImage | None) -> str:
    """Return the folder of tasks that name none."""
    return WORKDIR if image is None or taken(image.workdir) else image.workdir


def _seconds(task: TaskFolder) -> float:
    """Return the time limit of a whole run."""
    parts: Sequence[TaskFolder | StepFolder] = task.steps or [task]
    agent = sum(3600.0 if part.agent_seconds is None else part.agent_seconds for part in parts)
    checks = [check for part in {id(part): part for part in (task, *parts)}.values() if (check := part.health_check)]  # fmt: skip
    agent += sum(check.seconds + check.timeout_seconds for check in checks)
    # The tests run twice where they do not end: the second time without the agent's work.
    return agent + sum(2 * part.verifier_seconds for part in parts) + SLACK_SECONDS
