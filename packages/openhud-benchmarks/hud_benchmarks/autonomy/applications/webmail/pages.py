"""Pages of the mailbox."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.webmail.seed import OWN
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Pages, Visit

MESSAGES = "SELECT m.*, f.name AS folder FROM messages m JOIN folders f ON f.id = m.folder_id"
pages = Pages(
    "Mail",
    Path(__file__).parent,
    navigation={
        "Inbox": "/",
        "Search": "/search",
        "Write": "/write",
        "Folders": "/folders",
        "Contacts": "/contacts",
        "Rules": "/rules",
    },
)


@pages.get("/")
def inbox(visit: Visit) -> Response:
    return _folder(visit, "Inbox")


@pages.get("/folders")
def folders(visit: Visit) -> Response:
    return _folders_page(visit)


@pages.post("/folders")
def create_folder(visit: Visit) -> Response:
    name = visit.form["name"]
    if not name:
        return _folders_page(visit, "A folder needs a name.")
    if visit.rows("SELECT 1 FROM folders WHERE name = ?", name):
        return _folders_page(visit, f"There is a folder {name} already.")
    visit.insert("folders", name=name)
    return visit.go("/folders", f"Folder {name} is created.")


@pages.get("/folders/{id:int}")
def folder(visit: Visit) -> Response:
    return _folder(visit, visit.row("SELECT name FROM folders WHERE id = ?", visit.id)["name"])


@pages.get("/search")
def search(visit: Visit) -> Response:
    text = visit.query.get("text", "")
    like = f"%{text}%"
    query = (
        f"{MESSAGES} WHERE m.subject LIKE ? OR m.sender LIKE ? OR m.body LIKE ? ORDER BY m.id DESC"
    )
    listing = visit.listing(query, like, like, like) if text else None
    return visit.page("search.html", listing=listing)


@pages.get("/messages/{id:int}")
def message(visit: Visit) -> Response:
    return visit.page("message.html", message=_message(visit), folders=_folders(visit))


@pages.post("/messages/{id:int}/move")
def move(visit: Visit) -> Response:
    folder = visit.row("SELECT * FROM folders WHERE id = ?", visit.form["folder"])
    visit.update("messages", visit.id, folder_id=folder["id"])
    return visit.go(f"/messages/{visit.id}", f"The message is in {folder['name']}.")


@pages.post("/messages/{id:int}/star")
def star(visit: Visit) -> Response:
    visit.execute("UPDATE messages SET starred = 1 - starred WHERE id = ?", visit.id)
    return visit.go(f"/messages/{visit.id}")


@pages.get("/messages/{id:int}/reply")
def reply(visit: Visit) -> Response:
    message = _message(visit)
    values = {
        "recipient": message["sender"],
        "subject": f"Re: {message['subject']}",
        "answers": message["id"],
    }
    return visit.page("write.html", values=values)


@pages.get("/messages/{id:int}/forward")
def forward(visit: Visit) -> Response:
    message = _message(visit)
    quoted = "\n".join(f"> {line}" for line in message["body"].splitlines())
    return visit.page(
        "write.html", values={"subject": f"Fwd: {message['subject']}", "body": quoted}
    )


@pages.get("/write")
def write(visit: Visit) -> Response:
    return visit.page("write.html", values={})


@pages.post("/write")
def send(visit: Visit) -> Response:
    """Show the message as it will be sent; the form of that page sends it."""
    form = visit.form
    errors = []
    if "@" not in form["recipient"]:
        errors.append("Give the address of the recipient.")
    if not form["subject"]:
        errors.append("A message needs a subject.")
    if errors:
        return visit.page("write.html", values=form, errors=errors)
    if form.get("confirmed") != "yes":
        return visit.page("review.html", values=form)
    sent = visit.row("SELECT id FROM folders WHERE name = 'Sent'")["id"]
    visit.insert(
        "messages",
        folder_id=sent,
        sender=OWN,
        recipient=form["recipient"],
        subject=form["subject"],
        body=form["body"],
        answers=form["answers"] or None,
        sent=TODAY.isoformat(),
    )
    return visit.go("/", "The message is sent.")


@pages.get("/contacts")
def contacts(visit: Visit) -> Response:
    return visit.page(
        "contacts.html", listing=visit.listing("SELECT * FROM contacts ORDER BY name")
    )


@pages.get("/contacts/new")
def new_contact(visit: Visit) -> Response:
    return visit.page("contact.html", values={})


@pages.post("/contacts/new")
def create_contact(visit: Visit) -> Response:
    form = visit.form
    errors = []
    if not form["name"]:
        errors.append("A contact needs a name.")
    if "@" not in form["email"]:
        errors.append("This is no address.")
    if visit.rows("SELECT 1 FROM contacts WHERE email = ?", form["email"]):
        errors.append("Another contact has this address.")
    if errors:
        return visit.page("contact.html", values=form, errors=errors)
    columns = {name: form[name] for name in ("name", "email", "company", "phone")}
    visit.insert("contacts", **columns)
    return visit.go("/contacts", f"{form['name']} is a contact.")


@pages.get("/rules")
def rules(visit: Visit) -> Response:
    rows = visit.rows(
        "SELECT r.*, f.name AS folder FROM rules r JOIN folders f ON f.id = r.folder_id ORDER BY r.id"
    )
    return visit.page("rules.html", rules=rows)


@pages.get("/rules/new")
def new_rule(visit: Visit) -> Response:
    return visit.page("rule.html", values={}, folders=_folders(visit))


@pages.post("/rules/new")
def create_rule(visit: Visit) -> Response:
    form = visit.form
    errors = []
    if not form["sender"]:
        errors.append("A rule needs a sender.")
    if not form["folder"]:
        errors.append("Choose a folder.")
    if errors:
        return visit.page("rule.html", values=form, folders=_folders(visit), errors=errors)
    visit.insert("rules", sender=form["sender"], subject=form["subject"], folder_id=form["folder"])
    return visit.go("/rules", "The rule is set for messages to come.")


@pages.post("/rules/{id:int}/delete")
def delete_rule(visit: Visit) -> Response:
    visit.execute("DELETE FROM rules WHERE id = ?", visit.id)
    return visit.go("/rules", "The rule is deleted.")


def _folder(visit: Visit, name: str) -> Response:
    listing = visit.listing(f"{MESSAGES} WHERE f.name = ? ORDER BY m.id DESC", name)
    return visit.page("folder.html", name=name, listing=listing)


def _folders_page(visit: Visit, *errors: str) -> Response:
    rows = visit.rows(
        "SELECT f.*, count(m.id) AS messages FROM folders f LEFT JOIN messages m ON m.folder_id = f.id GROUP BY f.id"
    )
    return visit.page("folders.html", folders=rows, errors=list(errors))


def _message(visit: Visit) -> sqlite3.Row:
    return visit.row(f"{MESSAGES} WHERE m.id = ?", visit.id)


def _folders(visit: Visit) -> list[tuple[int, str]]:
    """Options of the list of folders."""
    return [(row["id"], row["name"]) for row in visit.rows("SELECT id, name FROM folders")]
