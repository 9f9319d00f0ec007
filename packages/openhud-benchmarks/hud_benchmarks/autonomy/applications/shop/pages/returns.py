"""Pages of returns: requests so far, and the three pages of a new one."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.shop.ordering import ORDER_LINES
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Section, Visit

REASONS = ["recalled", "damaged", "not as described", "does not fit"]
REFUNDS = ["original payment", "store credit"]
OPEN_LINES = f"""
    {ORDER_LINES} JOIN orders o ON o.id = l.order_id
    WHERE l.order_id = ? AND o.status = 'delivered' AND l.id NOT IN (SELECT line_id FROM return_lines)
    ORDER BY l.id
"""
section = Section()


@section.get("/returns")
def returns(visit: Visit) -> Response:
    rows = visit.rows(
        "SELECT r.*, count(*) AS articles FROM returns r JOIN return_lines l ON l.return_id = r.id"
        " GROUP BY r.id ORDER BY r.id DESC"
    )
    return visit.page("returns.html", returns=rows)


@section.get("/orders/{id:int}/return")
def choose_articles(visit: Visit) -> Response:
    return _page(visit, "articles")


@section.post("/orders/{id:int}/return")
def submit(visit: Visit) -> Response:
    """Answer with the next page of the request; the form of the last one submits it."""
    form, chosen = visit.form, _chosen(visit)
    if not chosen:
        return _page(visit, "articles", "Choose at least one article.")
    if form["step"] == "articles":
        return _page(visit, "reason")
    if form["reason"] not in REASONS or form["refund"] not in REFUNDS:
        return _page(visit, "reason", "Choose a reason and a refund.")
    if form["step"] == "reason":
        return _page(visit, "review")
    request = visit.insert(
        "returns",
        order_id=visit.id,
        reason=form["reason"],
        refund=form["refund"],
        requested=TODAY.isoformat(),
    )
    for line in chosen:
        visit.insert("return_lines", return_id=request, line_id=line["id"])
    return visit.go(f"/orders/{visit.id}", f"Return {request} is requested.")


def _chosen(visit: Visit) -> list[sqlite3.Row]:
    """Return the ticked lines of the order that can be returned."""
    ticked = visit.several("line")
    return [line for line in visit.rows(OPEN_LINES, visit.id) if str(line["id"]) in ticked]


def _page(visit: Visit, step: str, *errors: str) -> Response:
    order = visit.row("SELECT * FROM orders WHERE id = ?", visit.id)
    return visit.page(
        f"return_{step}.html",
        order=order,
        lines=visit.rows(OPEN_LINES, visit.id),
        chosen=_chosen(visit),
        reasons=REASONS,
        refunds=REFUNDS,
        errors=list(errors),
    )
