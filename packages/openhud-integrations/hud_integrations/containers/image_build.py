"""Builds of Dockerfiles for workspaces: without a daemon if the base is stored here, else by docker or podman."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hud.environment.workspace.sandbox.root_image import RootImage
from hud.errors import InfrastructureFault, UsageError
from hud.eval.runtimes.containers.container_engine import (
    ContainerEngine,
    container_engine,
    last_line,
)
from hud.eval.runtimes.containers.images import build_command
from hud_integrations.containers.container_image import EngineImage, engine_image
from hud_integrations.containers.dockerfiles.build_context import BuildContext
from hud_integrations.containers.dockerfiles.dockerfile_build import (
    UnsupportedBuild,
    build_without_daemon,
)
from hud_integrations.containers.dockerfiles.instructions import base_references
from hud_integrations.containers.image_store import add_image, named_image


def build_image(
    context: str | Path, text: str | None = None, *, arguments: Mapping[str, str] | None = None
) -> RootImage:
    """Return the image of a Dockerfile for `env.workspace(image=...)`: `text`, else the one in the folder `context`.

    It is built once for each content. Raises `UsageError` for a build that fails, or that neither way supports.
    """
    folder = Path(context).expanduser()
    text = _dockerfile(folder) if text is None else text
    try:
        return build_without_daemon(folder, text, arguments=arguments)
    except UnsupportedBuild as unsupported:
        try:
            return _built_by(container_engine(), folder, text, dict(arguments or {}))
        except (InfrastructureFault, UsageError) as failure:
            raise UsageError(f"{unsupported} {failure}") from None


def build_engine_image(
    context: str | Path, text: str | None = None, *, arguments: Mapping[str, str] | None = None
) -> EngineImage:
    """Return the image of a Dockerfile, built by docker or podman, for workspaces that are containers.

    It is built once for each content. Raises `InfrastructureFault` where neither answers, and `UsageError` for a build that fails.
    """
    folder = Path(context).expanduser()
    text = _dockerfile(folder) if text is None else text
    return engine_image(_built_reference(container_engine(), folder, text, dict(arguments or {})))


def _dockerfile(folder: Path) -> str:
    """Return the text of a folder's Dockerfile. Raises `UsageError` for an unreadable one."""
    try:
        return (folder / "Dockerfile").read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{folder / 'Dockerfile'} is no UTF-8 text.") from None


def bases_are_named(text: str) -> bool:
    """Return whether a Dockerfile has bases, and `add_image` named all of them."""
    bases = base_references(text)
    return bool(bases) and all(named_image(base) is not None for base in bases)


def _built_by(
    engine: ContainerEngine, folder: Path, text: str, arguments: dict[str, str]
) -> RootImage:
    """Return an unpacked image that the engine has built."""
    reference = _reference(folder, text, arguments)
    stored = named_image(reference)
    if stored is not None:
        return stored.configured()
    _built_reference(engine, folder, text, arguments)
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "image.tar"
        _run(engine, [engine.program, "save", "--output", str(archive), reference], engine.variables({}))  # fmt: skip
        return add_image(archive, reference)


def _reference(folder: Path, text: str, arguments: dict[str, str]) -> str:
    """Return the name of the image of a Dockerfile, its arguments and its context."""
    content = (text, sorted(arguments.items()), BuildContext(folder).digest())
    return f"hud-built/{hashlib.sha256(repr(content).encode()).hexdigest()[:32]}"


def _built_reference(
    engine: ContainerEngine, folder: Path, text: str, arguments: dict[str, str]
) -> str:
    """Return the name of an image of the engine, built if the engine has none of this content."""
    reference = _reference(folder, text, arguments)
    listed = [engine.program, "image", "inspect", "--format", "{{.Id}}", reference]
    if subprocess.run(listed, env=engine.variables({}), capture_output=True).returncode != 0:
        with tempfile.TemporaryDirectory() as scratch:
            dockerfile = Path(scratch) / "Dockerfile"
            dockerfile.write_text(text)
            command, variables = build_command(engine, folder, dockerfile, reference, arguments=arguments)  # fmt: skip
            _run(engine, command, variables)
    return reference


def _run(engine: ContainerEngine, command: list[str], variables: dict[str, str]) -> None:
    """Raises `UsageError` with the last line of a command that fails."""
    done = subprocess.run(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        reason = last_line(done.stdout, done.returncode)
        raise UsageError(f"{engine.program} {command[1]}: {reason}")
