"""`Cluster`: the nodes and actors of one fleet on a Ray cluster."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from hud.errors import UsageError
from hud_integrations.ray.host import Host
from hud_integrations.ray.keeper import Keeper, KeptCommand
from hud_integrations.ray.package import ray
from hud_integrations.ray.placement import FleetSettings, Node

SUPERVISOR = "supervisor"
KEPT = "hud-kept"
"""Namespace of commands that are kept."""
_HOST = "host/"
_HEAD = "node:__internal_head__"
"""Resource of the head node alone."""
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
# Ray would kill the worker with its host. It is to hand back what it plays first: it ends with its standard input.
_OUTLIVING = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "false"}}


@contextmanager
def connected(address: str, cluster: Cluster) -> Iterator[Cluster]:
    """Connect this process to the cluster at an address (`auto`: of this machine) for the block.

    Raises `UsageError` where there is none.
    """
    try:
        ray.init(
            address=address,
            namespace=cluster.namespace,
            log_to_driver=False,
            logging_level="error",
        )
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        raise UsageError(
            f"There is no Ray cluster to be used at {address!r}: {error} Give its address: --address HOST:PORT"
        ) from error
    try:
        # Ray prints what happens to nodes, among what the command prints.
        with redirect_stdout(sys.stderr):
            yield cluster
    finally:
        ray.shutdown()


class Cluster:
    """Actors of one fleet, by their names, and the nodes that they may use."""

    def __init__(self, name: str, namespace: str | None = None) -> None:
        self.name = name
        self.namespace = namespace or _namespace(name)

    @classmethod
    def of_kept(cls) -> Cluster:
        """Return the actors that keep commands; they belong to no fleet."""
        return cls("kept", KEPT)

    def nodes(self, on: Mapping[str, str]) -> list[Node]:
        """Return the living nodes with these labels, in a fixed order."""
        draining = ray._private.state.state.get_draining_nodes()
        living = [
            Node(
                row["NodeID"],
                row["NodeManagerAddress"],
                dict(row.get("Labels") or {}),
                _end(draining.get(row["NodeID"])),
            )
            for row in ray.nodes()
            if row["Alive"]
        ]
        return sorted((node for node in living if node.suits(on)), key=lambda node: node.id)

    def hosts(self) -> dict[str, Any]:
        """Return the handles of all hosts that there are, by node."""
        handles = {}
        for name in ray.util.list_named_actors():
            handle = self._actor(name) if name.startswith(_HOST) else None
            if handle is not None:
                handles[name.removeprefix(_HOST)] = handle
        return handles

    def supervisor(self) -> Any | None:
        """Return the supervisor's handle; None where there is none."""
        return self._actor(SUPERVISOR)

    def start_host(self, node: Node, settings: FleetSettings) -> Any:
        """Start a host on a node; returns its handle at once."""
        pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        # Detached: a supervisor that Ray restarts finds the hosts as they were.
        options = self._options(f"{_HOST}{node.id}", max_concurrency=4)
        actor = ray.remote(Host).options(**options, scheduling_strategy=pinned)
        return actor.remote(settings, node.shown, _labels(node))

    def start_supervisor(self, kind: type, settings: FleetSettings, on: Mapping[str, str]) -> Any:
        """Start the supervisor on a node with these labels; without any, on the head node."""
        return self._supervising(kind, SUPERVISOR, on).remote(settings)

    def _supervising(self, kind: type, name: str, on: Mapping[str, str]) -> Any:
        options = self._options(name, max_concurrency=8)
        if on:
            options["label_selector"] = dict(on)
        else:
            # An affinity to the head that is soft leads elsewhere at times, and the head outlives every other node.
            options["resources"] = {_HEAD: 0.001}
        return ray.remote(kind).options(**options)

    def leaving(self) -> frozenset[str]:
        """Return the nodes that drain."""
        return frozenset(ray._private.state.state.get_draining_nodes())

    def keeper(self, name: str) -> Any | None:
        """Return the actor that keeps a command; None where there is none."""
        return self._actor(name)

    def keepers(self) -> dict[str, Any]:
        """Return the actors that keep commands, by name; not those that another one keeps."""
        names = [name for name in ray.util.list_named_actors() if "/" not in name]
        actors = {name: self._actor(name) for name in sorted(names)}
        return {name: handle for name, handle in actors.items() if handle is not None}

    def gang(self, name: str) -> dict[str, Any]:
        """Return the actors that another one keeps, by name."""
        names = [
            actor_name
            for actor_name in ray.util.list_named_actors()
            if actor_name.startswith(f"{name}/")
        ]
        actors = {actor_name: self._actor(actor_name) for actor_name in sorted(names)}
        return {actor_name: handle for actor_name, handle in actors.items() if handle is not None}

    def start_keeper(self, settings: KeptCommand) -> Any:
        """Start a command on a node with its labels and amounts; returns its actor at once."""
        options = self._options(settings.name, max_concurrency=4)
        # Unlike a worker of the fleet, a command has nothing to hand back: it ends with its actor.
        options |= {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "runtime_env": {}}
        if settings.on:
            options["label_selector"] = dict(settings.on)
        return ray.remote(Keeper).options(**options).remote(settings)

    def start_gang(self, settings: KeptCommand) -> Any:
        """Start a command in a placement group of its own: all its GPUs on one node; returns its actor at once."""
        bundle = {"CPU": settings.cpus, "GPU": settings.gpus}
        group = ray.util.placement_group(
            [{name: amount for name, amount in bundle.items() if amount}],
            "STRICT_PACK",
            name=settings.name,
            lifetime="detached",
            bundle_label_selector=[dict(settings.on)] if settings.on else None,
        )
        placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, 0)
        options = self._options(settings.name, max_concurrency=4)
        options |= {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "runtime_env": {}}
        return ray.remote(Keeper).options(**options, scheduling_strategy=placed).remote(settings)

    def start_members(self, kind: type, name: str, settings: Any, on: Mapping[str, str]) -> Any:
        """Start the actor that keeps a model's servers, where a supervisor would be."""
        return self._supervising(kind, name, on).remote(settings)

    def free_gang(self, name: str) -> None:
        """Give a placement group's amounts back, if it is there."""
        try:
            group = ray.util.get_placement_group(name)
        except ValueError:
            return
        ray.util.remove_placement_group(group)

    def remove(self, handle: Any) -> None:
        """Kill an actor for good."""
        ray.kill(handle, no_restart=True)

    def _options(self, name: str, *, max_concurrency: int) -> dict[str, Any]:
        return {
            "name": name,
            "namespace": self.namespace,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "max_concurrency": max_concurrency,
            "num_cpus": 0,
            "runtime_env": _OUTLIVING,
        }

    def _actor(self, name: str) -> Any | None:
        try:
            return ray.get_actor(name, self.namespace)
        except ValueError:  # There is none, or it died since it was listed.
            return None


def answers(calls: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the results of remote calls by name: values, errors of Ray, and None for those that take longer."""
    refs = list(calls.values())
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=seconds, fetch_local=False)
    results: dict[str, Any] = {}
    for name, ref in calls.items():
        try:
            results[name] = ray.get(ref, timeout=0)
        except ray.exceptions.GetTimeoutError:
            results[name] = None
        except ray.exceptions.RayError as error:
            results[name] = error
    return results


def _namespace(name: str) -> str:
    return f"hud-fleet-{name}"


def _end(deadline_ms: int | None) -> float | None:
    """Return the Unix time at which a node ends; Ray's deadline is 0 where it has none."""
    if deadline_ms is None:
        return None
    return deadline_ms / 1000 if deadline_ms else math.inf


def _labels(node: Node) -> dict[str, str]:
    """Return the labels of a node that its operators gave it, where a worker can have them."""
    return {
        name: value
        for name, value in node.labels.items()
        if not name.startswith("ray.io/") and _LABEL.fullmatch(name) and _LABEL.fullmatch(value)
    }
