"""`compose_image`: the image of a workspace whose services run in containers beside it, as a Compose file declares them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.launch import Launch
from hud.environment.workspace.sandbox.limits import WorkspaceLimits
from hud.environment.workspace.sandbox.mounts import Mount
from hud.errors import UsageError
from hud.eval.runtimes.containers.health_check import parse_health_check
from hud_integrations.containers.compose.compose_file import Build, ComposeService, read_compose
from hud_integrations.containers.compose.compose_launch import ComposeLaunch
from hud_integrations.containers.compose.running_service import Service
from hud_integrations.containers.container_image import EngineImage, configured_image
from hud_integrations.containers.image_build import build_engine_image
from hud_integrations.containers.image_config import ImageConfig


@dataclass(frozen=True)
class ComposeImage(EngineImage):
    """The image of a Compose file's main service, with the other services."""

    services: tuple[Service, ...] = ()
    mounts: tuple[Mount, ...] = ()
    names: tuple[str, ...] = ()
    """Names of all services, which lead to the loopback that they share."""

    def launch(self, plan: Plan) -> Launch:  # type: ignore[override]
        names = dict.fromkeys(self.names, "127.0.0.1")
        own = replace(plan, hosts={**names, **plan.hosts}, mounts=(*self.mounts, *plan.mounts))
        services = [
            replace(service, plan=replace(service.plan, hosts=own.hosts))
            for service in self.services
        ]
        return ComposeLaunch(super().launch(own), services)


def compose_image(
    file: str | Path, *, main: str = "main", build: str | None = None
) -> ComposeImage:
    """Return the image of a Compose file for `env.workspace(image=...)`: commands run in its service `main`, beside the others.

    All services share one loopback, and reach each other by their names; each is built or present, none is pulled. `build`: the
    Dockerfile of a main service that names neither image nor build. Raises `InfrastructureFault` where neither docker nor podman
    answers, and `UsageError` for what is refused.
    """
    path = Path(file).expanduser()
    compose = read_compose(path, main)
    own = compose.main
    if own.image is None and own.build is None:
        if build is None:
            raise UsageError(f"{path.name}: services.{main} has neither image nor build.")
        image = build_engine_image(path.parent, build)
    else:
        image, _ = _image(own)
    return ComposeImage(
        image.engine,
        image.identifier,
        own.workdir or image.workdir,
        {**image.variables, **own.variables},
        own.user,
        services=tuple(_service(service) for service in compose.others),
        mounts=_mounts(own),
        names=compose.names,
    )


def _image(service: ComposeService) -> tuple[EngineImage, ImageConfig]:
    """Return the image of a service, built if it is not yet. Raises `UsageError`."""
    if service.build is not None:
        built = _built(service.build)
        return configured_image(built.identifier)
    if service.image is None:
        raise UsageError(f"services.{service.name} has neither image nor build.")
    return configured_image(service.image)


def _built(build: Build) -> EngineImage:
    try:
        text = (build.context / build.dockerfile).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from None
    return build_engine_image(build.context, text, arguments=build.arguments)


def _mounts(service: ComposeService) -> tuple[Mount, ...]:
    return tuple(Mount(source, target) for source, target in service.mounts)


def _service(service: ComposeService) -> Service:
    """Return a service with what its image declares. Raises `UsageError` for one without a command."""
    image, config = _image(service)
    image = replace(image, user=service.user)
    entrypoint = config.Entrypoint if service.entrypoint is None else service.entrypoint
    default = config.Cmd if service.entrypoint is None else ()
    argv = (*(entrypoint or ()), *((service.command if service.command is not None else default) or ()))  # fmt: skip
    if not argv:
        raise UsageError(f"services.{service.name} has no command, nor has its image.")
    limits = WorkspaceLimits(
        memory_mb=service.memory_mb or WorkspaceLimits.memory_mb,
        processors=service.processors or WorkspaceLimits.processors,
        processes=service.processes or WorkspaceLimits.processes,
    )
    plan = Plan(
        service.workdir or image.workdir,
        limits,
        _mounts(service),
        variables={**image.variables, **service.variables},
        image=image,
    )
    check = parse_health_check(service.healthcheck or config.Healthcheck)
    return Service(
        service.name,
        plan,
        argv,
        service.depends_on,
        check,
        service.restart,
        service.copies,
        service.folders,
    )
