"""Container images: `image` unpacks one for `env.workspace(image=...)`, `ContainerRuntime` runs them by docker or podman."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.containers.container_runtime import ContainerRuntime
    from hud_integrations.containers.image_store import image

__all__ = ["ContainerRuntime", "image"]

__getattr__ = lazy(__name__, {"ContainerRuntime": ".container_runtime", "image": ".image_store"})
