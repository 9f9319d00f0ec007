"""The routes of the platform, one file for each noun."""

from fastapi import APIRouter

from hud.platform.routes import (
    health,
    jobs,
    keys,
    login,
    models,
    telemetry,
    traces,
    training,
)

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    jobs.router,
    traces.router,
    models.router,
    training.router,
    keys.router,
    telemetry.router,
    login.router,
)
