"""The routes of the platform, one file for each noun."""

from fastapi import APIRouter

from hud.platform.routes import jobs, keys, login, models, traces, training

ROUTERS: tuple[APIRouter, ...] = (
    jobs.router,
    traces.router,
    models.router,
    training.router,
    keys.router,
    login.router,
)
