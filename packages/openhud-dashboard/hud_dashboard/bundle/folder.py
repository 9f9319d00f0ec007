"""The pages of a job in a folder, which open from the disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from hud.errors import UsageError
from hud_dashboard.bundle.pages import job_page, run_page
from hud_dashboard.static_files import FOLDER
from hud_platform.store import Store, records
from hud_platform.store.job_runs import job_runs

STATIC = ("style.css", "jobs.css", "icon.svg")


def export_job(store: Store, team: str, reference: str, folder: Path) -> int:
    """Write `index.html`, a page of each run and the styles; return the number of runs.

    Raises `UsageError` for a folder that is not empty.
    """
    job = records.find_job(store, team, reference)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; give a new folder.")
    (folder / "runs").mkdir(parents=True)
    for name in STATIC:
        shutil.copyfile(FOLDER / name, folder / name)
    page = job_page(store, job, lambda trace: f"runs/{trace}.html", lambda name: name)
    (folder / "index.html").write_text(page, encoding="utf-8")
    traces = [run["trace_id"] for run in job_runs(store, team, job)]
    for trace in traces:
        run = records.find_run(store, team, trace)
        page = run_page(store, run, "../index.html", lambda name: f"../{name}")
        (folder / "runs" / f"{trace}.html").write_text(page, encoding="utf-8")
    return len(traces)
