"""`TaskFolder`: a task of Harbor, read from its files: `instruction.md`, `task.toml`, `environment/`, `tests/`, `solution/`."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath
from typing import Any

from hud.environment.workspace.sandbox.mounts import taken
from hud.errors import UsageError
from hud.eval.runtimes.containers.health_check import HealthCheck
from hud_integrations.containers.compose.compose_file import read_compose
from hud_integrations.containers.dockerfiles.build_context import BuildContext
from hud_integrations.containers.image_build import bases_are_named
from hud_integrations.harbor.dockerfile import Copy, Stage, read_dockerfile
from hud_integrations.harbor.settings import (
    allowed_hosts,
    literal_variables,
    memory_mb,
    read_health_check,
)
from hud_integrations.harbor.verifier.verifier_settings import (
    VerifierSettings,
    is_separate,
    read_verifier,
)

_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
WORKDIR = "/app"
"""Folder of a task that names none, or one that a sandbox cannot have."""


@dataclass(frozen=True)
class Copied:
    """A file or folder of `environment/`, and its place in the sandbox."""

    source: Path
    target: str


@dataclass(frozen=True)
class StepFolder:
    """A step of a task, in `steps/NAME`: its own instruction, and tests that are laid over the task's."""

    folder: Path
    name: str
    instruction: str
    least: Mapping[str, float]
    """Rewards below which the task ends with this step, by name."""
    agent_seconds: float | None
    verifier_seconds: float
    variables: Mapping[str, str]
    """Variables of its tests, which take the place of the task's."""
    health_check: HealthCheck | None = None
    """Check that succeeds before the agent begins the step."""


@dataclass
class TaskFolder:
    """One task. `lost` names the parts that have no counterpart here, `refused` those without which it cannot be played."""

    folder: Path
    name: str
    instruction: str
    config: dict[str, Any]
    workdir: str = WORKDIR
    """Its working directory; empty: the image's."""
    dockerfile: str | None = None
    """Dockerfile of its image, empty if its Compose file names the image; None: it is played with this machine's programs."""
    has_services: bool = False
    """It is played with the services of its Compose file, by docker or podman."""
    copies: list[Copied] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    steps: list[StepFolder] = field(default_factory=list)
    verifier: VerifierSettings | None = None
    """Its verifier, where that has a container of its own."""

    @property
    def allowed_hosts(self) -> tuple[str, ...] | None:
        """Hosts that programs may reach: None for all public ones, empty for none."""
        return allowed_hosts(self._section("environment"))

    @property
    def settings(self) -> tuple[Any, ...]:
        """Settings of the sandbox; tasks with equal ones share an environment."""
        image = (
            None
            if self.dockerfile is None
            else (self.dockerfile, BuildContext(self.context).digest())
        )
        return (
            self.workdir,
            self.allowed_hosts,
            tuple(sorted(self.variables.items())),
            image,
            self.has_services,
            self.cpus,
            bool(self.steps),  # They have a tool of their own.
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """Plain values of `[metadata]`: columns of the task."""
        declared = self._section("metadata")
        return {
            name: value for name, value in declared.items() if isinstance(value, str | int | float)
        }

    @property
    def context(self) -> Path:
        """The folder of its container."""
        return self.folder / "environment"

    @property
    def compose_file(self) -> Path:
        return self.context / "docker-compose.yaml"

    @property
    def verifier_seconds(self) -> float:
        return float(self._section("verifier").get("timeout_sec", 600.0))

    @property
    def agent_seconds(self) -> float | None:
        seconds = self._section("agent").get("timeout_sec")
        return None if seconds is None else float(seconds)

    @property
    def memory_mb(self) -> float | None:
        return memory_mb(self._section("environment"))

    @property
    def cpus(self) -> float | None:
        count = self._section("environment").get("cpus")
        return None if count is None else float(count)

    @property
    def health_check(self) -> HealthCheck | None:
        """Check that succeeds before the agent begins; None without one."""
        return read_health_check(self._section("environment"))

    def variables_of(self, section: str) -> dict[str, str]:
        """Return the literal variables of a section; `${NAME}` is left out."""
        return literal_variables(self._section(section))

    def _section(self, name: str) -> dict[str, Any]:
        section = self.config.get(name)
        return section if isinstance(section, dict) else {}


def read_folder(
    folder: Path, name: str, images: bool | None = False, *, services: bool = False
) -> TaskFolder:
    """Read one task. Raises `UsageError` for a file that is missing or cannot be parsed.

    `images`: it is played in the image of its Dockerfile, else with this machine's programs; None: in the image if
    `add_image` named the Dockerfile's bases. `services`: docker or podman runs those of its Compose file.
    """
    if (link := _link_out_of(folder)) is not None:
        # Its target would become the prompt, or a file of the sandbox.
        return TaskFolder(
            folder, name, "", {}, refused=[f"the link {link}, which leads out of its folder"]
        )
    try:
        config = tomllib.loads((folder / "task.toml").read_text())
        instruction = folder / "instruction.md"
        task = TaskFolder(folder, name, "", config)
        if "steps" in config:
            task.steps = read_steps(task)
        else:
            task.instruction = instruction.read_text().strip()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{folder / 'task.toml'} is not valid TOML: {error}.") from None
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from None
    if task.compose_file.exists():
        _read_services(task, services)
    _read_config(task)
    text = _dockerfile(task)
    in_image = text is not None and (bases_are_named(text) if images is None else images)
    if is_separate(config.get("verifier") or {}):
        _read_verifier(task, in_image=in_image, is_named=images is None)
    if task.has_services or in_image:
        _read_image(task, text or "")
        return task
    _read_dockerfile(task)
    if task.workdir == "/" or taken(task.workdir):
        task.lost.append(f"the working directory {task.workdir} (it is {WORKDIR})")
        task.workdir = WORKDIR
    return task


def _link_out_of(folder: Path) -> str | None:
    """Return a symbolic link in a folder whose target is not in it, or is absolute; None without one."""
    root = folder.resolve()
    for place, folders, files in os.walk(folder):
        for path in (Path(place) / name for name in (*folders, *files)):
            if path.is_symlink() and (
                path.readlink().is_absolute() or not path.resolve().is_relative_to(root)
            ):
                return path.relative_to(folder).as_posix()
    return None


def holds_tasks(root: Path) -> bool:
    """Return whether a folder is a task of Harbor, or has some below it."""
    return next(root.rglob("task.toml"), None) is not None


def read_folders(
    root: Path, images: bool | None = False, *, services: bool = False
) -> list[TaskFolder]:
    """Read a task folder, or every one in a folder, by their relative paths. Raises `UsageError` if there is none."""
    if (root / "task.toml").is_file():
        return [read_folder(root, root.resolve().name, images, services=services)]
    folders = sorted(path.parent for path in root.rglob("task.toml"))
    if not folders:
        raise UsageError(f"{root} has no task folder of Harbor: none has a task.toml.")
    return [
        read_folder(folder, folder.relative_to(root).as_posix(), images, services=services)
        for folder in folders
    ]


def _read_config(task: TaskFolder) -> None:
    """Name what `task.toml` sets and a sandbox cannot have."""
    config = task.config
    environment, verifier = config.get("environment") or {}, config.get("verifier") or {}
    refusing = {
        "environment.gpus": environment.get("gpus"),
        "environment.tpu": environment.get("tpu"),
        "environment.os = windows": environment.get("os") == "windows",
        "environment.mcp_servers": environment.get("mcp_servers"),
        "a verifier without tests/test.sh": not (task.folder / "tests" / "test.sh").is_file()
        and not is_separate(verifier)
        and not (
            task.steps and all((step.folder / "tests/test.sh").is_file() for step in task.steps)
        ),
    }
    task.refused += [name for name, is_set in refusing.items() if is_set]
    losing = {
        "environment.docker_image": environment.get("docker_image"),
        "environment.skills_dir": environment.get("skills_dir"),
        "environment.storage_mb": environment.get("storage_mb"),
        "agent.user": (config.get("agent") or {}).get("user"),
        "verifier.user": verifier.get("user"),
        "verifier.collect": not is_separate(verifier) and verifier.get("collect"),
        "artifacts": not is_separate(verifier) and config.get("artifacts"),
        "trajectory.json": (task.folder / "trajectory.json").exists(),
    }
    task.lost += [name for name, is_set in losing.items() if is_set]
    _read_step_configs(task)
    for section in ("environment", "verifier", "solution"):
        declared = (config.get(section) or {}).get("env") or {}
        task.lost += [
            f"{section}.env.{name}" for name, value in declared.items() if "${" in str(value)
        ]
    for section in ("agent", "verifier"):
        if (config.get(section) or {}).get("network_mode"):
            task.lost.append(f"{section}.network_mode")
    task.variables.update(task.variables_of("environment"))


def _read_services(task: TaskFolder, services: bool) -> None:
    """Have a task played with the services of its Compose file, or name why it cannot be."""
    name = task.compose_file.relative_to(task.folder).as_posix()
    if not services:
        task.refused.append(name)
        return
    try:
        read_compose(task.compose_file)
    except UsageError as error:
        task.refused.append(f"environment/{error}".rstrip("."))
    else:
        task.has_services = True


def _read_verifier(task: TaskFolder, *, in_image: bool, is_named: bool) -> None:
    """Have a task's tests run in a container of their own, or name why they cannot.

    `is_named`: without docker or podman, `add_image` must have named the bases of its image.
    """
    try:
        if task.steps or not (in_image or task.has_services):
            raise UsageError("")
        named_only = is_named and not task.has_services
        task.verifier = read_verifier(task.folder / "tests", task.config, named_only=named_only)
    except UsageError as error:
        task.refused.append(f"a verifier in a container of its own{error}")


def read_steps(task: TaskFolder) -> list[StepFolder]:
    """Return the steps of a task, in order. Raises `UsageError` for one without a folder of its name."""
    steps = []
    for declared in task.config["steps"]:
        name = str(declared.get("name", ""))
        folder = task.folder / "steps" / name
        if not _STEP_NAME.fullmatch(name) or not (folder / "instruction.md").is_file():
            raise UsageError(f"{task.folder}: step {name!r} has no steps/{name}/instruction.md.")
        least = declared.get("min_reward") or {}
        verifier = declared.get("verifier") or {}
        seconds = (declared.get("agent") or {}).get("timeout_sec", task.agent_seconds)
        steps.append(
            StepFolder(
                folder,
                name,
                (folder / "instruction.md").read_text().strip(),
                {"reward": float(least)} if isinstance(least, int | float) else least,
                None if seconds is None else float(seconds),
                float(verifier.get("timeout_sec", task.verifier_seconds)),
                {**task.variables_of("verifier"), **literal_variables(verifier)},
                read_health_check(declared),
            )
        )
    return steps


def _read_step_configs(task: TaskFolder) -> None:
    """Name what steps set and a workspace cannot have, or has for the whole task only."""
    strategy = task.config.get("multi_step_reward_strategy", "mean")
    if strategy not in ("mean", "final"):
        task.refused.append(f"multi_step_reward_strategy = {strategy}")
    for declared in task.config.get("steps") or ():
        agent, verifier = declared.get("agent") or {}, declared.get("verifier") or {}
        if is_separate(verifier):
            task.refused.append("a verifier in a container of its own")
        losing = {
            "artifacts": declared.get("artifacts"),
            "agent.user": agent.get("user"),
            "agent.network_mode": agent.get("network_mode"),
            "verifier.user": verifier.get("user"),
            "verifier.network_mode": verifier.get("network_mode"),
            "verifier.collect": verifier.get("collect"),
        }
        task.lost += [
            f"steps.{declared['name']}.{name}" for name, is_set in losing.items() if is_set
        ]


def _dockerfile(task: TaskFolder) -> str | None:
    """Return the Dockerfile of a task's image, which may be ready-made; None without one."""
    ready_made = (task.config.get("environment") or {}).get("docker_image")
    if ready_made:
        return f"FROM {ready_made}\n"
    path = task.context / "Dockerfile"
    return path.read_text(errors="replace") if path.is_file() else None


def _read_image(task: TaskFolder, text: str) -> None:
    """Have a task played in the image of a Dockerfile, which has its files, variables and working directory."""
    task.dockerfile = text
    task.workdir = str((task.config.get("environment") or {}).get("workdir") or "")
    task.lost = [part for part in task.lost if part != "environment.docker_image"]
    if task.workdir and taken(task.workdir):
        task.lost.append(f"the working directory {task.workdir} (it is the image's)")
        task.workdir = ""


def _read_dockerfile(task: TaskFolder) -> None:
    """Take working directory, copied files and variables of the last stage, and what is not carried over."""
    path = task.folder / "environment" / "Dockerfile"
    stage = read_dockerfile(path.read_text(errors="replace")) if path.is_file() else Stage()
    environment = task.config.get("environment") or {}
    task.lost += [
        part
        for part in stage.lost
        if not (part.startswith("Dockerfile: FROM ") and environment.get("docker_image"))
    ]
    task.variables = {**stage.variables, **task.variables}
    for copy in stage.copies:
        _read_copy(task, copy)
    workdir = str(environment.get("workdir") or stage.workdir)
    task.workdir = WORKDIR if workdir == "/" and not path.is_file() else workdir


def _read_copy(task: TaskFolder, copy: Copy) -> None:
    context = task.context
    place = normpath(copy.workdir / copy.target)
    into_folder = (
        len(copy.sources) > 1
        or copy.target.rpartition("/")[2] in ("", ".", "..")
        or copy.workdir.is_relative_to(place)
    )
    for name in copy.sources:
        source = context / name.lstrip("/")
        if not source.resolve().is_relative_to(context.resolve()) or not source.exists():
            task.lost.append(f"Dockerfile: {copy.instruction}")
        elif source.is_dir() or not into_folder:
            task.copies.append(Copied(source, place))
        else:
            task.copies.append(Copied(source, f"{place.rstrip('/')}/{source.name}"))
