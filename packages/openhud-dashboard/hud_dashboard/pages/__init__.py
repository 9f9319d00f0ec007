"""The pages, one file for each family."""

from fastapi import APIRouter

from hud_dashboard.pages import (
    baseline,
    comparison,
    environments,
    evaluation,
    fleet,
    job,
    jobs,
    labels,
    models,
    models_comparison,
    people,
    playground,
    review_pairs,
    search,
    sharing,
    signin,
    tasksets,
    tasksets_editing,
    trace,
    train,
    train_launch,
    train_steps,
    views,
)

ROUTERS: tuple[APIRouter, ...] = (
    signin.router,
    jobs.router,
    comparison.router,  # Before jobs, whose ids would match "compare" and "new".
    evaluation.router,
    job.router,
    labels.router,
    review_pairs.router,
    baseline.router,
    environments.router,
    fleet.router,
    people.router,
    tasksets_editing.router,
    tasksets.router,
    models_comparison.router,
    models.router,
    playground.router,
    search.router,
    sharing.router,
    sharing.open_router,
    train_launch.router,  # Before train, whose run ids would match "new".
    train_steps.router,
    train.router,
    trace.router,
    views.router,
)
