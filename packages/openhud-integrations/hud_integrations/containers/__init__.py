"""Container images without a daemon: `image` unpacks one for `env.workspace(image=...)`."""

from hud_integrations.containers.image_store import image

__all__ = ["image"]
