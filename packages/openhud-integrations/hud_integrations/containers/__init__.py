"""Container images: unpacked or built without a daemon for `env.workspace(image=...)`, or run by docker or podman.

`image` unpacks an archive, `add_image` names one as a base, `build_image` builds a Dockerfile. `engine_image` and
`build_engine_image` return images of docker or podman, for workspaces that are containers, and `compose_image` one with services
beside it. `ContainerRuntime` runs images that serve environments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.containers.compose.compose_image import compose_image
    from hud_integrations.containers.container_image import engine_image
    from hud_integrations.containers.container_runtime import ContainerRuntime
    from hud_integrations.containers.image_build import build_engine_image, build_image
    from hud_integrations.containers.image_store import add_image, image

__all__ = [
    "ContainerRuntime",
    "add_image",
    "build_engine_image",
    "build_image",
    "compose_image",
    "engine_image",
    "image",
]

__getattr__ = lazy(
    __name__,
    {
        "ContainerRuntime": ".container_runtime",
        "add_image": ".image_store",
        "build_engine_image": ".image_build",
        "build_image": ".image_build",
        "compose_image": ".compose.compose_image",
        "engine_image": ".container_image",
        "image": ".image_store",
    },
)
