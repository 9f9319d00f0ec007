"""`ComposeFile`: the services of a Compose file; what has no counterpart in a workspace is refused by name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml  # type: ignore[import-untyped]

from hud.byte_sizes import parse_bytes
from hud.dotenv import read_dotenv
from hud.environment.workspace.sandbox.limits import MB
from hud.errors import UsageError

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]
Restart = Literal["no", "always", "on-failure"]
_RESTARTS: Mapping[str, Restart] = {
    "no": "no",
    "always": "always",
    "unless-stopped": "always",
    "on-failure": "on-failure",
}
_HONOURED = (
    "image build command entrypoint environment env_file depends_on healthcheck volumes working_dir user hostname "
    "container_name networks links restart mem_limit cpus pids_limit deploy profiles tmpfs"
)
_WITHOUT_EFFECT = (
    "expose ports labels init stdin_open tty stop_grace_period stop_signal logging platform pull_policy shm_size "
    "annotations"
)
_TOP = "services version name volumes networks"
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_LOG_FOLDER = re.compile(r"\$\{HOST_\w+\}:")
"""Harbor's own folders of logs, which a workspace has anyway."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Build:
    """Context, Dockerfile and arguments of an image."""

    context: Path
    dockerfile: str = "Dockerfile"
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ComposeService:
    """A service as its file declares it; None: as the image declares it."""

    name: str
    image: str | None = None
    build: Build | None = None
    command: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    depends_on: Mapping[str, Condition] = field(default_factory=dict)
    healthcheck: Mapping[str, Any] | None = None
    """As an image has it, with times in nanoseconds."""
    copies: tuple[tuple[Path, str], ...] = ()
    """Files and folders beside the file, and where they are copied to."""
    mounts: tuple[tuple[Path, str], ...] = ()
    """Files and folders that are mounted read-only, and where."""
    folders: tuple[str, ...] = ()
    """Folders of its own, which are made if the image has none."""
    workdir: str | None = None
    user: str | None = None
    names: tuple[str, ...] = ()
    """Names by which other services reach it, its own among them."""
    restart: Restart = "no"
    memory_mb: float | None = None
    processors: float | None = None
    processes: int | None = None


@dataclass(frozen=True)
class ComposeFile:
    """The services of a Compose file, each after those that it depends on."""

    main: ComposeService
    """The service in which commands run."""
    others: tuple[ComposeService, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all services."""
        return tuple(name for service in (self.main, *self.others) for name in service.names)


def read_compose(path: Path, main: str = "main") -> ComposeFile:
    """Read a Compose file; the service `main` may be missing from it. Raises `UsageError` with what is refused."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path.name} is no YAML: {' '.join(str(error).split())}.") from None
    try:
        return _Reader(path.parent, document).file(main)
    except _RefusedError as refused:
        raise UsageError(f"{path.name}: {refused}") from None
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UsageError(f"{path.name} is malformed: {error!r}.") from None


class _RefusedError(Exception):
    """A part of the file that a workspace cannot have."""


class _Reader:
    """Reader of one document, whose paths start in `folder`."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        self.folder = folder.resolve()
        self.document = document
        for name, part in document.items():
            if name not in _TOP.split() and not name.startswith("x-") and part:
                raise _RefusedError(f"{name} is refused.")
        for kind in ("volumes", "networks"):
            for name, part in (document.get(kind) or {}).items():
                if (part or {}).get("external"):
                    raise _RefusedError(f"{kind}.{name}.external is refused.")

    def file(self, main: str) -> ComposeFile:
        declared = self.document.get("services") or {}
        services = {
            name: self.service(name, part or {}, main)
            for name, part in declared.items()
            if name == main or not (part or {}).get("profiles")
        }
        self._refuse_shared_volumes(declared, services)
        own = services.pop(main, None) or ComposeService(main, names=(main,))
        return ComposeFile(own, tuple(_in_order(services, {main})))

    def service(self, name: str, part: dict[str, Any], main: str) -> ComposeService:
        """Return a service. Raises `_RefusedError`."""
        read = {*_HONOURED.split(), *_WITHOUT_EFFECT.split()}
        for key, setting in part.items():
            if key not in read and not key.startswith("x-") and setting:
                raise _RefusedError(f"services.{name}.{key} is refused.")
        limits = _limits(name, part.get("deploy") or {})
        memory, processors = (
            part.get("mem_limit") or limits.get("memory"),
            part.get("cpus") or limits.get("cpus"),
        )
        restart = str(part.get("restart") or "no").partition(":")[0]
        if restart not in _RESTARTS:
            raise _RefusedError(f"services.{name}.restart = {restart} is refused.")
        copies, mounts, folders = self._volumes(name, part, writable=name != main)
        return ComposeService(
            name,
            image=self.text(part.get("image")),
            build=self._build(name, part.get("build")),
            command=self._words(part.get("command")),
            entrypoint=self._words(part.get("entrypoint")),
            variables=self._variables(part),
            depends_on=_dependencies(name, part.get("depends_on")),
            healthcheck=self._health(part.get("healthcheck")),
            copies=copies,
            mounts=mounts,
            folders=folders,
            workdir=self.text(part.get("working_dir")),
            user=self.text(part.get("user")),
            names=tuple(dict.fromkeys(self._names(name, part))),
            restart=_RESTARTS[restart],
            memory_mb=None if memory is None else _bytes(self.text(memory)) / MB,
            processors=None if processors is None else float(self.text(processors) or 0),
            processes=None if not part.get("pids_limit") else int(part["pids_limit"]),
        )

    def text(self, value: Any) -> Any:
        """Return a value as text, its variables replaced by their defaults; None as it is."""
        if value is None:
            return None

        def default(match: re.Match[str]) -> str:
            escaped, name, text, bare = match.groups()
            if escaped:
                return "$"
            if text is None:
                raise _RefusedError(f"the variable {name or bare} has no default, and is refused.")
            return str(text)

        return _VARIABLE.sub(default, _plain(value))

    def path(self, where: str, text: str) -> Path:
        """Return a path in the file's folder."""
        path = (self.folder / text).resolve()
        if not path.is_relative_to(self.folder) or not path.exists():
            raise _RefusedError(f"{where}: {text} is no file beside it.")
        return path

    def _words(self, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        words = shlex.split(self.text(value)) if isinstance(value, str) else map(self.text, value)
        return tuple(words)

    def _build(self, name: str, value: Any) -> Build | None:
        if value is None:
            return None
        if isinstance(value, str):
            value = {"context": value}
        for key in value:
            if key not in ("context", "dockerfile", "args"):
                raise _RefusedError(f"services.{name}.build.{key} is refused.")
        context = self.path(f"services.{name}.build", self.text(value.get("context", ".")))
        return Build(
            context,
            self.text(value.get("dockerfile", "Dockerfile")),
            self._pairs(value.get("args")),
        )

    def _pairs(self, value: Any) -> dict[str, str]:
        """Return a map, or a list of NAME=VALUE; a name without a value would be this process's variable."""
        pairs = (
            value.items()
            if isinstance(value, Mapping)
            else (
                str(line).split("=", 1) if "=" in str(line) else (line, None)
                for line in value or ()
            )
        )
        variables = {}
        for name, text in pairs:
            if text is None:
                raise _RefusedError(f"the variable {name} has no value, and is refused.")
            variables[str(name)] = str(self.text(text))
        return variables

    def _variables(self, part: dict[str, Any]) -> dict[str, str]:
        files = part.get("env_file") or ()
        variables: dict[str, str] = {}
        for name in [files] if isinstance(files, str) else files:
            variables |= read_dotenv(self.path("env_file", self.text(name)))
        return {**variables, **self._pairs(part.get("environment"))}

    def _health(self, value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        test = value.get("test")
        if value.get("disable") or test in (["NONE"], "NONE"):
            return {"Test": ["NONE"]}
        words = ["CMD-SHELL", self.text(test)] if isinstance(test, str) else list(self._words(test) or ())  # fmt: skip
        times = {"Interval": "interval", "Timeout": "timeout", "StartPeriod": "start_period"}
        nanoseconds = {
            name: int(_seconds(self.text(value[key])) * _NANOSECONDS)
            for name, key in times.items()
            if value.get(key) is not None
        }
        return {"Test": words, "Retries": int(value.get("retries") or 0), **nanoseconds}

    def _names(self, name: str, part: dict[str, Any]) -> Iterator[str]:
        yield name
        for key in ("hostname", "container_name"):
            if part.get(key):
                yield self.text(part[key])
        networks = part.get("networks")
        for settings in networks.values() if isinstance(networks, Mapping) else ():
            yield from (settings or {}).get("aliases") or ()

    def _volumes(self, name: str, part: dict[str, Any], *, writable: bool) -> tuple[Any, Any, Any]:
        """Return copied files, read-only mounts, and folders of the service's own."""
        copies: list[tuple[Path, str]] = []
        mounts: list[tuple[Path, str]] = []
        temporary = part.get("tmpfs") or ()
        temporary = [temporary] if isinstance(temporary, str) else temporary
        folders = [self.text(folder).partition(":")[0] for folder in temporary]
        for source, target, mode in self._declared_volumes(part):
            if source is None or not source.startswith((".", "/", "~")):
                folders.append(target)
                continue
            path = self.path(f"services.{name}.volumes", source)
            if "ro" in mode.split(","):
                mounts.append((path, target))
            elif writable:
                copies.append((path, target))
            else:
                raise _RefusedError(
                    f"services.{name}.volumes: {source} is writable, and is refused; mount it read-only (:ro), or COPY it."
                )
        return tuple(copies), tuple(mounts), tuple(folders)

    def _declared_volumes(self, part: dict[str, Any]) -> Iterator[tuple[str | None, str, str]]:
        """Yield source (None: anonymous), target and mode of each volume but Harbor's."""
        for volume in part.get("volumes") or ():
            if isinstance(volume, Mapping):
                if volume.get("type") not in ("bind", "volume"):
                    raise _RefusedError(f"a volume of type {volume.get('type')} is refused.")
                mode = "ro" if volume.get("read_only") else "rw"
                yield self.text(volume.get("source")), self.text(volume["target"]), mode
            elif not _LOG_FOLDER.match(volume):
                source, colon, rest = self.text(volume).partition(":")
                target, _, mode = rest.partition(":")
                yield (source, target, mode) if colon else (None, source, "")

    def _refuse_shared_volumes(self, declared: dict[str, Any], services: Mapping[str, Any]) -> None:
        users: dict[str, str] = {}
        for name in services:
            for source, _, _ in self._declared_volumes(declared[name] or {}):
                if source is None or source.startswith((".", "/", "~")):
                    continue
                if users.setdefault(source, name) != name:
                    raise _RefusedError(f"the volume {source} of several services is refused.")


def _limits(name: str, deploy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the limits of a service's `deploy`. Raises `_RefusedError` for anything else that it sets."""
    resources = deploy.get("resources") or {}
    others = {
        "deploy": set(deploy) - {"resources"},
        "deploy.resources": set(resources) - {"limits"},
        "deploy.resources.limits": set(resources.get("limits") or ()) - {"memory", "cpus"},
    }
    for place, keys in others.items():
        if keys:
            raise _RefusedError(f"services.{name}.{place}.{min(keys)} is refused.")
    return resources.get("limits") or {}


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dependencies(name: str, value: Any) -> dict[str, Condition]:
    if not isinstance(value, Mapping):
        return dict.fromkeys(value or (), "service_started")
    conditions = {}
    for other, settings in value.items():
        condition = (settings or {}).get("condition", "service_started")
        if condition not in get_args(Condition):
            raise _RefusedError(
                f"services.{name}.depends_on: the condition {condition} is refused."
            )
        conditions[other] = cast("Condition", condition)
    return conditions


def _in_order(services: Mapping[str, ComposeService], done: set[str]) -> Iterator[ComposeService]:
    """Yield services after those that they depend on. Raises `_RefusedError` for an unknown one, or a cycle."""
    waiting = dict(services)
    while waiting:
        ready = [name for name, service in waiting.items() if done >= service.depends_on.keys()]
        if not ready:
            raise _RefusedError(f"depends_on of {', '.join(waiting)} is never met.")
        for name in ready:
            yield waiting.pop(name)
        done |= set(ready)


def _bytes(text: str) -> int:
    size = parse_bytes(text)
    if size is None:
        raise _RefusedError(f"{text} is no size.")
    return size


def _seconds(text: str) -> float:
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise _RefusedError(f"{text} is no time.")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
