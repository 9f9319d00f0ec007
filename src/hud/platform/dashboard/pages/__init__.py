"""The pages, one file for each family."""

from fastapi import APIRouter

from hud.platform.dashboard.pages import jobs, signin

ROUTERS: tuple[APIRouter, ...] = (
    signin.router,
    jobs.router,
)
