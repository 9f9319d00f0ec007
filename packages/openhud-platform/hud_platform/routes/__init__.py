"""Routes of the platform, one file for each resource."""

from fastapi import APIRouter

from hud_platform.routes import (
    builds,
    checkpoints,
    comparisons,
    downloads,
    environments,
    external_models,
    fleet,
    fleet_nodes,
    health,
    hosted_only,
    jobs,
    keys,
    labels,
    login,
    model_exports,
    models,
    promotions,
    reward_rules,
    rollouts,
    run_passes,
    runtime,
    search,
    secrets,
    source_policies,
    tasksets,
    telemetry,
    traces,
    training,
)
from hud_platform.routes.gateway import gateway_router, refuse_shared_paths

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    jobs.router,
    traces.router,
    reward_rules.router,
    source_policies.router,
    search.router,
    labels.router,
    comparisons.router,
    models.router,
    checkpoints.router,
    external_models.router,
    model_exports.router,
    promotions.router,
    keys.router,
    secrets.router,
    telemetry.router,
    tasksets.router,
    environments.router,
    builds.router,
    rollouts.router,
    run_passes.router,
    fleet_nodes.router,
    runtime.router,
    login.router,
    downloads.router,
    hosted_only.router,
)


def first_routers() -> tuple[APIRouter, ...]:
    """Return the routers that are searched before those of other packages (`plugs`), whose clients may poll as well.

    Raises `UsageError` for a dialect with a path of the platform.
    """
    gateway = gateway_router()
    refuse_shared_paths(gateway, (*ROUTERS, training.router, fleet.router))
    return (
        training.router,  # Before the gateway's: model names may contain slashes.
        gateway,  # Early: it is the hot path.
        fleet.router,  # Early, too: workers ask all the time.
    )
