"""`HarborEnvironment`: task folders of Harbor, played in a workspace and graded by their own tests."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from hud.environment import Environment, Task, WorkspaceLimits
from hud.environment.workspace.workspace import Workspace
from hud.errors import GraderFault, UsageError
from hud.graders import EvaluationResult, SubScore
from hud.integrations.harbor.task_folder import TaskFolder, read_folders

TESTS, SOLUTION, LOGS = "/tests", "/solution", "/logs"
VERIFIER = f"{LOGS}/verifier"
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
    ) -> None:
        """`reward_range` bounds what the tests write. Raises `UsageError` for tasks that need different sandboxes."""
        super().__init__(name, reward_range=reward_range)
        self.source_file = sys._getframe(1).f_code.co_filename
        found = [task for task in read_folders(Path(folder)) if not task.refused]
        if not found or len({task.settings for task in found}) > 1:
            raise UsageError(
                f"{folder} must hold tasks that have one working directory, network and variables; `hud import` sorts them."
            )
        self._tasks = {task.name: task for task in found}
        first = found[0]
        hosts = first.allowed_hosts
        limits = WorkspaceLimits(
            memory_mb=max([_MEMORY_MB, *(task.memory_mb or 0.0 for task in found)]),
            seconds=max(map(_seconds, found)),
        )
        self._shell = self.add(
            Workspace(
                guest_path=first.workdir,
                folders=(TESTS, SOLUTION, LOGS),
                network=hosts != (),
                allowed_hosts=hosts or None,
                env=first.variables,
                limits=limits,
            )
        )
        self.template(id="task")(self._episode())

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
        task.runtime_config = {"limits": {"run_timeout_s": _seconds(folder)}}
        return task

    def _episode(self) -> Any:
        async def task(name: str) -> AsyncGenerator[Any, Any]:
            """Do what a task's instruction says."""
            folder = self._folder(name)
            for copied in folder.copies:
                await self._shell.copy_in(copied.source, copied.target)
            yield folder.instruction
            yield await self._graded(folder)

        return task

    async def _graded(self, folder: TaskFolder) -> EvaluationResult:
        """Run the tests of a task, and return the rewards that they wrote."""
        # Files that the agent left in the folders of the tests are deleted first.
        emptied = f"find {TESTS} -mindepth 1 -delete; rm -rf {VERIFIER}; mkdir -p {VERIFIER}"
        await self._shell.bash(emptied, cwd="/", alone=True)
        await self._shell.copy_in(folder.folder / "tests", TESTS)
        ended = await self._shell.bash(
            f"bash {TESTS}/test.sh",
            cwd=folder.workdir,
            timeout=folder.verifier_seconds,
            env=folder.variables_of("verifier"),
        )
        info = {
            "exit_code": ended.exit_code,
            "stdout": ended.stdout[-_OUTPUT:],
            "stderr": ended.stderr[-_OUTPUT:],
        }
        rewards = parse_rewards(*await self._written())
        return EvaluationResult(
            reward=reward_of(rewards),
            info={**info, "rewards": rewards},
            subscores=[
                SubScore(name=key, value=value, weight=1.0)
                for key, value in rewards.items()
                if len(rewards) > 1 and value <= 1.0
            ]
            or None,
        )

    async def _written(self) -> tuple[str, bytes]:
        """Return the name and contents of the file of rewards; reward.json comes first, as in Harbor.

        Without any, the error of the workspace is raised: the agent's failure if it used the shell.
        """
        try:
            return "reward.json", await self._shell.read(f"{VERIFIER}/reward.json")
        except FileNotFoundError:
            return "reward.txt", await self._shell.read(f"{VERIFIER}/reward.txt")

    async def oracle(self, run: Any) -> str:
        """Play a task with its own solution: an agent for `hud eval`. Raises `UsageError` for a task without one."""
        folder = self._folder(run.task.args["name"])
        solution = folder.folder / "solution"
        if not (solution / "solve.sh").is_file():
            raise UsageError(f"Harbor task {folder.name!r} has no solution/solve.sh.")
        shell = await run.open("ssh")
        for path in sorted(path for path in solution.rglob("*") if path.is_file()):
            place = f"{SOLUTION}/{path.relative_to(solution).as_posix()}"
            await shell.run(f"mkdir -p {shlex.quote(str(Path(place).parent))}")
            await shell.write(place, path.read_bytes())
        variables = "".join(
            f"{key}={shlex.quote(value)} " for key, value in folder.variables_of("solution").items()
        )
        ended = await shell.run(f"{variables}bash {SOLUTION}/solve.sh", timeout=_seconds(folder))
        return f"solve.sh ended with {ended.exit_status}"


def parse_rewards(name: str, content: bytes) -> dict[str, float]:
    """Return the rewards in `reward.json` or `reward.txt`, by name. Raises `GraderFault` for anything but finite numbers."""
    try:
        if name == "reward.txt":
            found: Any = float(content)
        else:
            found = json.loads(content)
        named = found if isinstance(found, dict) else {"reward": found}
        if any(isinstance(value, bool | str) or value is None for value in named.values()):
            raise ValueError("a value is no number")
        rewards = {str(key): float(value) for key, value in named.items()}
        if not rewards or not all(map(math.isfinite, rewards.values())):
            raise ValueError("no finite number")
    except (ValueError, TypeError) as error:
        raise GraderFault(f"The tests wrote no rewards to {name}, but {content[:200]!r}: {error}.") from None  # fmt: skip
    return rewards


def reward_of(rewards: dict[str, float]) -> float:
    """Return the value named `reward`, else the mean of all."""
    return rewards["reward"] if "reward" in rewards else sum(rewards.values()) / len(rewards)


def _seconds(task: TaskFolder) -> float:
    """Return the time limit of a whole run."""
    agent = task.agent_seconds
    return (3600.0 if agent is None else agent) + task.verifier_seconds + SLACK_SECONDS
