"""Paths of the dashboard's pages."""

from __future__ import annotations

from hud_platform.access.page_paths import SIGN_IN, PagePaths

PATHS = PagePaths(
    families=frozenset(
        {
            *("", "jobs", "trace", "traces", "models", "train", "playground", "search", "shared"),
            *("views", "review", "labels", "tasksets", "environments", "fleet", "people"),
            *("settings", "baseline", "events", "static", "signin", "signout", "favicon.ico"),
        }
    ),
    open=(SIGN_IN, "/favicon.ico", "/static/", "/shared/"),
)
