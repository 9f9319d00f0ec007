"""Requirements of a source, and their virtual environment on top of the server's own packages.
`hud` itself, under any of its names, is the server's package and is never downloaded.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from hud.errors import UsageError
from hud.fleet.builds.shared_packages import share_ours
from hud_platform.environments.build_commands import run
from hud_platform.environments.build_log import BuildLog

_OURS = re.compile(r"^\s*(hud|hud[-_.]python|openhud)(?![-\w.])", re.IGNORECASE)
"""Pattern of requirements that the server's own package satisfies."""
_INCLUDES = re.compile(r"^(-r|--requirement|-c|--constraint)[ =]?\s*(\S+)$")
_PASSED = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_PASSED_TO_INSTALLERS = ("HOME", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


def clean_variables(*, installing: bool = False) -> dict[str, str]:
    """Return the environment variables for a build's commands, without secrets of the server."""
    names = {*_PASSED}
    if installing:
        # A package index's address may contain a password: only for installers.
        names |= {*_PASSED_TO_INSTALLERS}
        names |= {name for name in os.environ if name.startswith(("PIP_", "UV_"))}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def requirements(source: Path) -> list[str]:
    """Return the requirements of a source, as lines of a requirements file, without the server's own package.
    Read from requirements.txt and its includes, or else from pyproject.toml.
    Raises `UsageError` for an invalid file.
    """
    listed, project = source / "requirements.txt", source / "pyproject.toml"
    if listed.is_file():
        listed_lines = _lines(listed, source, set())
    elif project.is_file():
        try:
            parsed = tomllib.loads(project.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"pyproject.toml: {error}.") from error
        table = parsed.get("project")
        dependencies = table.get("dependencies", []) if isinstance(table, dict) else []
        if not isinstance(dependencies, list):
            raise UsageError("pyproject.toml: project.dependencies is not a list.")
        listed_lines = [str(dependency) for dependency in dependencies]
    else:
        return []
    return [requirement for requirement in listed_lines if not _OURS.match(requirement)]


async def install(
    folder: Path, wanted: list[str], variables: Mapping[str, str], log: BuildLog
) -> None:
    """Create `folder/venv` and install the requirements; their relative paths are relative to `folder/source`."""
    venv, listed = folder / "venv", folder / "requirements.txt"
    python = str(venv / "bin" / "python")
    listed.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    environ = {
        **clean_variables(installing=True),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **variables,
    }
    uv = shutil.which("uv")
    if uv is not None:
        await run([uv, "venv", "--python", sys.executable, str(venv)], environ, log)
        command = [uv, "pip", "install", "--python", python]
    else:
        pip = importlib.util.find_spec("pip") is not None
        without = ["--without-pip"] if pip else []
        await run([sys.executable, "-m", "venv", *without, str(venv)], environ, log)
        ours = [sys.executable, "-m", "pip", "--python", python]
        command = [*(ours if pip else [python, "-m", "pip"]), "install", "--no-input"]
    await asyncio.to_thread(share_ours, venv, described=uv is not None)
    await run([*command, "-r", str(listed)], environ, log, folder / "source")


def _lines(file: Path, source: Path, seen: set[Path]) -> list[str]:
    """Return the lines of a requirements file: continued ones joined, included files in place, no comments."""
    name = file.relative_to(source)
    if not file.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{name} is outside of the source.")
    if file in seen:
        return []
    seen.add(file)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"There is no file {name}, which the requirements include.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read: {error}.") from error
    parsed: list[str] = []
    for raw in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        include = _INCLUDES.match(line)
        if include:
            # Lines of a constraints file do not add requirements.
            inner = Path(os.path.normpath(file.parent / include[2]))
            if not inner.is_relative_to(source):
                raise UsageError(f"{name} includes {include[2]}, which is outside of the source.")
            if include[1] in ("-c", "--constraint"):
                parsed.append(f"-c {inner}")
            else:
                parsed += _lines(inner, source, seen)
        elif line:
            parsed.append(line)
    return parsed
