"""Pages of lists of articles."""

from __future__ import annotations

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.shop.ordering import VARIANTS, add_to_cart
from hud_benchmarks.autonomy.applications.shop.pages.catalogue import product_page
from hud_benchmarks.autonomy.applications.shop.seed import LATER
from hud_benchmarks.autonomy.web.pages import Section, Visit

section = Section()


@section.get("/lists")
def lists(visit: Visit) -> Response:
    return _lists_page(visit)


@section.post("/lists")
def create(visit: Visit) -> Response:
    name = visit.form["name"]
    error = _problem(visit, name)
    if error:
        return _lists_page(visit, error)
    visit.insert("lists", name=name)
    return visit.go("/lists", f"The list {name} is created.")


@section.get("/lists/{id:int}")
def one_list(visit: Visit) -> Response:
    return _list_page(visit)


@section.post("/lists/add")
def add(visit: Visit) -> Response:
    """Add a variant, from the page of its product."""
    form = visit.form
    if not form["variant"] or not form["list"]:
        return product_page(visit, int(form["product"]), form, "Choose a variant and a list.")
    name = visit.row("SELECT name FROM lists WHERE id = ?", form["list"])["name"]
    visit.row("SELECT 1 FROM variants WHERE id = ?", form["variant"])
    visit.execute(
        "INSERT OR IGNORE INTO list_items VALUES (?, ?)", int(form["list"]), int(form["variant"])
    )
    return visit.go(f"/lists/{form['list']}", f"The article is on the list {name}.")


@section.post("/lists/{id:int}/rename")
def rename(visit: Visit) -> Response:
    name = visit.form["name"]
    if visit.row("SELECT name FROM lists WHERE id = ?", visit.id)["name"] == LATER:
        return _list_page(visit, "This list keeps its name.")
    error = _problem(visit, name)
    if error:
        return _list_page(visit, error)
    visit.update("lists", visit.id, name=name)
    return visit.go(f"/lists/{visit.id}", f"The list is now called {name}.")


@section.post("/lists/{id:int}/move")
def move(visit: Visit) -> Response:
    """Move an article to another list; the target is empty where none was chosen."""
    target, variant = visit.form["list"], int(visit.form["variant"])
    if not target:
        return _list_page(visit, "Choose a list.")
    name = visit.row("SELECT name FROM lists WHERE id = ?", target)["name"]
    _remove(visit, variant)
    visit.execute("INSERT OR IGNORE INTO list_items VALUES (?, ?)", int(target), variant)
    return visit.go(f"/lists/{visit.id}", f"The article is on the list {name}.")


@section.post("/lists/{id:int}/remove")
def remove(visit: Visit) -> Response:
    _remove(visit, int(visit.form["variant"]))
    return visit.go(f"/lists/{visit.id}", "The article is removed.")


@section.post("/lists/{id:int}/cart")
def to_cart(visit: Visit) -> Response:
    """Move an article to the cart."""
    variant = visit.row(f"{VARIANTS} WHERE v.id = ?", visit.form["variant"])
    if not variant["stock"]:
        return _list_page(visit, f"{variant['product']} is out of stock.")
    _remove(visit, variant["id"])
    add_to_cart(visit.db, variant["id"], 1)
    return visit.go(f"/lists/{visit.id}", f"{variant['product']} is in the cart.")


def _remove(visit: Visit, variant: int) -> None:
    condition = "list_id = ? AND variant_id = ?"
    visit.row(f"SELECT 1 FROM list_items WHERE {condition}", visit.id, variant)
    visit.execute(f"DELETE FROM list_items WHERE {condition}", visit.id, variant)


def _problem(visit: Visit, name: str) -> str:
    """Sentence on what is wrong with the name of a list; empty where nothing is."""
    if not name:
        return "A list needs a name."
    if visit.rows("SELECT 1 FROM lists WHERE name = ?", name):
        return f"There is a list {name} already."
    return ""


def _lists_page(visit: Visit, *errors: str) -> Response:
    rows = visit.rows(
        "SELECT l.*, count(i.variant_id) AS articles FROM lists l LEFT JOIN list_items i ON i.list_id = l.id"
        " GROUP BY l.id"
    )
    return visit.page("lists.html", lists=rows, errors=list(errors))


def _list_page(visit: Visit, *errors: str) -> Response:
    row = visit.row("SELECT * FROM lists WHERE id = ?", visit.id)
    others = visit.rows("SELECT id, name FROM lists WHERE id != ? ORDER BY id", visit.id)
    return visit.page(
        "list.html",
        list=row,
        items=visit.rows(
            f"SELECT a.* FROM ({VARIANTS}) a JOIN list_items i ON i.variant_id = a.id WHERE i.list_id = ?"
            " ORDER BY a.product, a.id",
            visit.id,
        ),
        others=[tuple(row) for row in others],
        later=LATER,
        errors=list(errors),
    )
