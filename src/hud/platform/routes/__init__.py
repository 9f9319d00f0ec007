"""The routes of the platform, one file for each noun."""

from fastapi import APIRouter

from hud.platform.routes import jobs, models, traces, training

ROUTERS: tuple[APIRouter, ...] = (
    jobs.router,
    traces.router,
    models.router,
    training.router,
)
