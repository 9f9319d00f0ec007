"""Forms of the dashboard's pages, field by field: no value of a form fails the server or becomes markup."""

from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest
from tests.security.server import HTML, SAME_SITE, AttackedServer, bearer, page_routes
from tests.security.test_hostile_text import ODD, Looked, filled

FORM = (b"content-type", b"application/x-www-form-urlencoded")
TEXT = "plain".join(ODD.values())
VALUES = {
    "hostile": TEXT,
    "empty": "",
    "a path": "../../../etc/passwd",
    "an absolute path": "/etc/passwd",
    "not a number": "NaN",
    "infinite": "1e309",
    "negative": "-1",
    "an integer of many digits": "9" * 5_000,
    "a zero byte": "a\0b",
    "long": "x" * 1_000_000,
    "nested": "[" * 20_000,
    "another team's": "0" * 32,
}


class Forms(HTMLParser):
    """The forms of a page: path, and default values of the fields by name."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.forms = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "form":
            self.forms.append((given.get("method") or "get", given.get("action"), {}))
        elif self.forms and given.get("name"):
            fields = self.forms[-1][2]
            fields.setdefault(given["name"], given.get("value") or "")
        if tag == "option" and self.forms and self.forms[-1][2]:
            fields = self.forms[-1][2]
            name = next(reversed(fields))
            fields[name] = fields[name] or given.get("value") or ""


@pytest.fixture
def world(tmp_path):
    made = AttackedServer(tmp_path / "home")
    yield made
    made.parts.close()


async def pages(world, headers, ids):
    """Yield the path and the text of each page."""
    for route in page_routes():
        if route.method == "GET" and not route.path.startswith(("/static", "/favicon", "/events")):
            answer = await world.ask("GET", route.at(ids), [*headers, *HTML])
            if answer.headers.get("content-type", "").startswith("text/html"):
                yield route.at(ids), answer.text


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_value_of_a_field_fails_the_server_or_becomes_markup(world, caplog):
    ids = await filled(world, "plain")
    headers = [*bearer(world.key()), *SAME_SITE]
    forms = {}
    async for path, page in pages(world, headers, ids):
        for method, action, fields in Forms(page).forms:
            target = (action or path).partition("?")[0]
            if "revoke" not in target and target != "/signout":
                forms.setdefault((method.upper(), target, tuple(sorted(fields))), fields)
    tried = 0
    for (method, target, _), fields in sorted(forms.items()):
        for field in fields:
            for kind, value in VALUES.items():
                sent = urlencode({**fields, field: value}, errors="replace")
                where = (method, target, field, kind)
                if method == "POST":
                    answer = await world.ask("POST", target, [*headers, *HTML, FORM], sent.encode())
                elif len(sent) < 60_000:
                    answer = await world.ask("GET", f"{target}?{sent}", [*headers, *HTML])
                else:
                    continue
                tried += 1
                assert answer.status < 500, (where, answer.text[:500])
                assert "Traceback" not in answer.text, where
                if answer.headers.get("content-type", "").startswith("text/html"):
                    assert Looked(answer.text).found == [], where
                assert "root:" not in answer.text, where
    assert not [record for record in caplog.records if record.exc_info]
    assert tried > 300, tried
    async for path, page in pages(world, headers, ids):
        assert Looked(page).found == [], path
