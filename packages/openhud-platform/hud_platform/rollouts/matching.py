"""Requirements of rollouts, and the nodes that meet them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hud import exact_json
from hud.environment.templates.runtime_config import requirements_of

AMOUNTS = ("cpus", "memory_mb", "gpus")
"""Requirements that rollouts on one node use up together."""


@dataclass(frozen=True)
class Offer:
    """Resources of a node: its labels, its properties, and the amounts that are free."""

    labels: Mapping[str, str]
    capacity: Mapping[str, Any]
    free: Mapping[str, float]

    @classmethod
    def of_machine(cls, labels: Mapping[str, str], capacity: Mapping[str, Any]) -> Offer:
        """The offer of a node that plays nothing."""
        return cls(labels, capacity, {name: capacity.get(name) or 0.0 for name in AMOUNTS})

    def without(self, needs: str) -> Offer:
        """Return what is left after a rollout with these requirements."""
        wanted = exact_json.loads(needs)
        free = {name: self.free[name] - wanted.get(name, 0.0) for name in AMOUNTS}
        return Offer(self.labels, self.capacity, free)

    def lacks(self, needs: str) -> list[str]:
        """Return the requirements that this does not meet, as text."""
        wanted: dict[str, Any] = exact_json.loads(needs)
        missing = [
            f"{name}={wanted[name]:g}"
            for name in AMOUNTS
            if name in wanted and self.free[name] < wanted[name]
        ]
        kinds = wanted.get("gpu_types")
        if kinds and not any(_alike(kind, have) for kind in kinds for have in self._gpus()):
            missing.append(f"gpu type {' or '.join(kinds)}")
        missing += [
            f"label {name}={value}"
            for name, value in wanted.get("labels", {}).items()
            if self.labels.get(name) != value
        ]
        missing += ["images"] if wanted.get("images") and not self.capacity.get("images") else []
        platform = wanted.get("platform")
        if platform is not None and self.capacity.get("platform") != platform:
            missing.append(f"platform {platform}")
        return missing

    def _gpus(self) -> list[str]:
        return [str(gpu_type) for gpu_type in self.capacity.get("gpu_types") or ()]


def lacking(offers: Iterable[Offer], needs: str) -> list[str]:
    """Return what the closest of these offers lacks, as text: nothing where one meets the requirements."""
    return min((offer.lacks(needs) for offer in offers), key=len, default=["any node"])


def needs_of(
    slug: str, runtime_config: dict[str, Any] | None, *, images: bool, platform: str | None
) -> str | None:
    """Return the requirements of a rollout as canonical JSON; None where every node meets them.

    `images`: a build of it is a container image. `platform`: the platform that packages of its builds are for.
    """
    requirements = requirements_of(slug, runtime_config)
    resources = requirements.resources
    wanted: dict[str, Any] = {
        "images": images or None,
        "platform": platform,
        "labels": requirements.labels,
    }
    if resources is not None:
        wanted |= {"cpus": resources.cpu, "memory_mb": resources.memory_mb}
        if resources.gpu is not None:
            kinds = resources.gpu.type
            listed = [kinds] if isinstance(kinds, str) else kinds
            wanted |= {"gpus": resources.gpu.count, "gpu_types": listed}
    needs = {name: value for name, value in wanted.items() if value}
    return exact_json.dumps(needs, option=exact_json.OPT_SORT_KEYS).decode() if needs else None


def _alike(wanted: str, have: str) -> bool:
    """True where one name of a GPU is part of the other: H100, NVIDIA H100 80GB HBM3."""
    return wanted.lower() in have.lower() or have.lower() in wanted.lower()
