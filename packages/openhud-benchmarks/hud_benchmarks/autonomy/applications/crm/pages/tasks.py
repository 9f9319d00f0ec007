"""Pages of tasks."""

from __future__ import annotations

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.crm.pages import forms
from hud_benchmarks.autonomy.applications.crm.records import TASKS
from hud_benchmarks.autonomy.web.pages import Section, Visit

section = Section()


@section.get("/tasks")
def tasks(visit: Visit) -> Response:
    query = visit.query
    status = query.get("status", "open")
    conditions = [{"open": "NOT t.done", "done": "t.done"}.get(status, "1")]
    values = []
    if query.get("assignee"):
        conditions.append("t.assignee_id = ?")
        values.append(query["assignee"])
    where = " AND ".join(conditions)
    return visit.page(
        "tasks.html",
        listing=visit.listing(f"{TASKS} WHERE {where} ORDER BY t.due, t.id", *values, size=15),
        status=status,
        users=forms.users(visit),
    )


@section.get("/tasks/{id:int}")
def task(visit: Visit) -> Response:
    return _task_page(visit)


@section.post("/tasks/{id:int}")
def save(visit: Visit) -> Response:
    form = visit.form
    errors = forms.day_problem(form["due"])
    if not form["title"]:
        errors.append("A task needs a title.")
    if errors:
        return _task_page(visit, *errors)
    visit.update(
        "tasks",
        visit.id,
        title=form["title"],
        due=form["due"],
        assignee_id=int(form["assignee"]),
    )
    return visit.go("/tasks", "The task is saved.")


@section.post("/tasks/{id:int}/done")
def finish(visit: Visit) -> Response:
    """Mark a task as done, or as open again."""
    visit.execute("UPDATE tasks SET done = 1 - done WHERE id = ?", visit.id)
    return visit.go("/tasks", "The task is changed.")


def _task_page(visit: Visit, *errors: str) -> Response:
    task = visit.row(f"{TASKS} WHERE t.id = ?", visit.id)
    values = dict(task) | {"assignee": task["assignee_id"]} | (visit.form if errors else {})
    return visit.page(
        "task.html", task=task, values=values, users=forms.users(visit), errors=list(errors)
    )
