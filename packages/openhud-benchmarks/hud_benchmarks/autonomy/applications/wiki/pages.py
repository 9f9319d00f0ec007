"""Pages of the wiki."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

from hud_benchmarks.autonomy.web.pages import Pages, Visit

PAGES = "SELECT p.*, s.name AS space FROM pages p JOIN spaces s ON s.id = p.space_id"
pages = Pages(
    "Wiki",
    Path(__file__).parent,
    navigation={"Spaces": "/", "All pages": "/pages", "New page": "/pages/new"},
)


@pages.get("/")
def spaces(visit: Visit) -> Response:
    rows = visit.rows(
        "SELECT s.*, count(p.id) AS pages FROM spaces s LEFT JOIN pages p ON p.space_id = s.id GROUP BY s.id"
    )
    return visit.page("spaces.html", spaces=rows)


@pages.get("/pages")
def listed(visit: Visit) -> Response:
    query = visit.query
    text = f"%{query.get('text', '')}%"
    conditions, values = ["(p.title LIKE ? OR p.body LIKE ?)"], [text, text]
    if query.get("space"):
        conditions.append("s.id = ?")
        values.append(query["space"])
    if query.get("tag"):
        conditions.append("p.id IN (SELECT page_id FROM tags WHERE name = ?)")
        values.append(query["tag"].lower())
    listing = visit.listing(f"{PAGES} WHERE {' AND '.join(conditions)} ORDER BY p.title", *values)
    return visit.page("pages.html", listing=listing, spaces=_spaces(visit))


@pages.get("/pages/new")
def new(visit: Visit) -> Response:
    return visit.page("edit.html", page=None, values={}, spaces=_spaces(visit))


@pages.post("/pages/new")
def create(visit: Visit) -> Response:
    form = visit.form
    errors = _problems(visit, 0)
    if errors:
        return visit.page("edit.html", page=None, values=form, spaces=_spaces(visit), errors=errors)
    page = visit.insert("pages", space_id=form["space"], title=form["title"], body=form["body"])
    visit.insert("revisions", page_id=page, author_id=visit.user, body=form["body"])
    return visit.go(f"/pages/{page}", "The page is created.")


@pages.get("/pages/{id:int}")
def page(visit: Visit) -> Response:
    return visit.page(
        "page.html",
        page=visit.row(f"{PAGES} WHERE p.id = ?", visit.id),
        tags=visit.rows("SELECT name FROM tags WHERE page_id = ? ORDER BY name", visit.id),
    )


@pages.get("/pages/{id:int}/edit")
def edit(visit: Visit) -> Response:
    page = visit.row(f"{PAGES} WHERE p.id = ?", visit.id)
    values = dict(page) | {"space": page["space_id"]}
    return visit.page("edit.html", page=page, values=values, spaces=_spaces(visit))


@pages.post("/pages/{id:int}/edit")
def save(visit: Visit) -> Response:
    page = visit.row(f"{PAGES} WHERE p.id = ?", visit.id)
    form = visit.form
    errors = _problems(visit, visit.id)
    if errors:
        return visit.page("edit.html", page=page, values=form, spaces=_spaces(visit), errors=errors)
    visit.update("pages", visit.id, space_id=form["space"], title=form["title"], body=form["body"])
    visit.insert("revisions", page_id=visit.id, author_id=visit.user, body=form["body"])
    return visit.go(f"/pages/{visit.id}", "Saved.")


@pages.post("/pages/{id:int}/tags")
def add_tag(visit: Visit) -> Response:
    name = visit.form["tag"].lower()
    if not name:
        return visit.go(f"/pages/{visit.id}", "Name a tag first.")
    visit.execute("INSERT OR IGNORE INTO tags (page_id, name) VALUES (?, ?)", visit.id, name)
    return visit.go(f"/pages/{visit.id}", f"Tag {name} is set.")


@pages.post("/pages/{id:int}/tags/remove")
def remove_tag(visit: Visit) -> Response:
    name = visit.form["tag"]
    visit.execute("DELETE FROM tags WHERE page_id = ? AND name = ?", visit.id, name)
    return visit.go(f"/pages/{visit.id}", f"Tag {name} is removed.")


@pages.get("/pages/{id:int}/history")
def history(visit: Visit) -> Response:
    revisions = visit.rows(
        "SELECT r.id, u.name AS author, substr(r.body, 1, 60) AS beginning FROM revisions r"
        " JOIN users u ON u.id = r.author_id WHERE page_id = ? ORDER BY r.id DESC",
        visit.id,
    )
    page = visit.row(f"{PAGES} WHERE p.id = ?", visit.id)
    return visit.page("history.html", page=page, revisions=revisions)


@pages.get("/revisions/{id:int}")
def revision(visit: Visit) -> Response:
    row = visit.row(
        "SELECT r.*, p.title FROM revisions r JOIN pages p ON p.id = r.page_id WHERE r.id = ?",
        visit.id,
    )
    return visit.page("revision.html", revision=row)


@pages.post("/revisions/{id:int}/restore")
def restore(visit: Visit) -> Response:
    revision_row = visit.row("SELECT * FROM revisions WHERE id = ?", visit.id)
    visit.update("pages", revision_row["page_id"], body=revision_row["body"])
    visit.insert(
        "revisions",
        page_id=revision_row["page_id"],
        author_id=visit.user,
        body=revision_row["body"],
    )
    return visit.go(f"/pages/{revision_row['page_id']}", "The revision is restored.")


@pages.get("/pages/{id:int}/delete")
def ask_delete(visit: Visit) -> Response:
    return visit.page("delete.html", page=visit.row(f"{PAGES} WHERE p.id = ?", visit.id))


@pages.post("/pages/{id:int}/delete")
def delete(visit: Visit) -> Response:
    page = visit.row(f"{PAGES} WHERE p.id = ?", visit.id)
    if visit.form["title"] != page["title"]:
        errors = ["This is not the title of the page."]
        return visit.page("delete.html", page=page, errors=errors)
    visit.execute("DELETE FROM pages WHERE id = ?", visit.id)
    return visit.go("/pages", f"{page['title']} is deleted.")


def _spaces(visit: Visit) -> list[tuple[int, str]]:
    """Options of the list of spaces."""
    return [(row["id"], row["name"]) for row in visit.rows("SELECT id, name FROM spaces")]


def _problems(visit: Visit, page: int) -> list[str]:
    """Sentences on what is wrong with the form of a page."""
    form = visit.form
    errors = []
    if not form["title"]:
        errors.append("A page needs a title.")
    if not form["space"]:
        errors.append("Choose a space.")
    if visit.rows("SELECT 1 FROM pages WHERE title = ? AND id != ?", form["title"], page):
        errors.append("Another page has this title.")
    return errors
