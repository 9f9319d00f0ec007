"""Text that is written anywhere becomes no markup, no other text and no other row, on any page, twin and export."""

import json
import re
from html.parser import HTMLParser

import pytest
from tests.dashboard.made_traces import at, put_run, text
from tests.dashboard.recorded import record
from tests.dashboard.test_environments import MANIFEST, build
from tests.security.server import HTML, SAME_SITE, AttackedServer, bearer, page_routes

from hud.trace import dashed, new_id

MARK = "Mark7"
"""Stands before and after each hostile text, so that it is found again."""
ODD = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "attribute": "\" onmouseover=alert(3) x='",
    "svg": "<svg onload=alert(4)><a xlink:href='javascript:alert(5)'>",
    "template": "{{7*7}}{% raw %}${7*7}",
    "markdown": "[x](javascript:alert(6)) ![](//evil.example/x) <!-- --> ```",
    "bidi": "\u202egpj.exe\u2066\u200f\u061c",
    "control": "\x1b[31m\x07\x08\x9b2J\x7f",
    "lines": "a\r\nb\u2028c\u2029d\x85e",
    "formula": '=HYPERLINK("//evil.example")\t+1\t@x',
    "json": '"}],"items":[{"id":"',
}
HALF = "\ud800"
HIDDEN = re.compile(
    "[\u202a-\u202e\u2066-\u2069\u200f\u061c\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]"
)
KEPT_IN = ("textarea", "title")
"""Elements whose text is a value to send back, or the browser's to show."""


class Looked(HTMLParser):
    """What of a page could run, lead elsewhere or read otherwise than it was written."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.found, self.within = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.within = tag
        given = dict(attributes)
        for name, value in attributes:
            if name.startswith(("on", "style", "srcdoc", "hx-on", "formaction")):
                self.found.append((tag, name, value))
            if name in ("href", "src", "action", "data", "xlink:href", "poster") and not re.match(
                r"[/?#]|data:image/(?:png|jpeg);|https://(?:docs\.)?python", value or "#"
            ):
                self.found.append((tag, name, value))
        if tag == "script" and not (given.get("src") or "").startswith("/static/"):
            self.found.append((tag, given, ""))
        if tag in ("iframe", "object", "embed", "base", "foreignobject"):
            self.found.append((tag, given, ""))

    def handle_data(self, data):
        if self.within not in KEPT_IN and HIDDEN.search(data):
            self.found.append((self.within, "text", data[:120]))


@pytest.fixture
def world(tmp_path):
    made = AttackedServer(tmp_path / "home")
    yield made
    made.parts.close()


async def filled(world, said):
    """Write a text wherever clients may write one; return ids by the names of path parameters."""
    headers = bearer(world.key())

    async def tell(method, path, body):
        answer = await world.ask(method, path, headers, body)
        assert answer.status in (200, 400, 422), (path, answer.status, answer.text)
        return answer.json() if answer.status == 200 else {}

    texts, sizes = ["hello"] * 8, {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2}
    model = await tell(
        "POST",
        "/v2/models/create",
        {"name": "m", "texts": texts, "sizes": {**sizes, "kv_heads": 1}},
    )
    await tell("POST", "/v2/models/create", {"name": said, "texts": texts})
    job, entered = new_id(), new_id()
    await tell("POST", f"/v2/trace/job/{job}/enter", {"name": said})
    await tell(
        "POST", f"/v2/trace/{entered}/enter", {"job_id": job, "task_slug": said, "model": said}
    )
    ended = {"status": "error", "error": said, "stop_reason": said, "metadata": {said: said}}
    await tell("POST", f"/v2/trace/{entered}/exit", ended)
    row = {"name": said, "env": {"name": "shop"}, "task_id": "buy", "args": {said: said}}
    taskset = await tell("POST", "/v2/tasks/upload", {"taskset_name": said, "tasks": [row]})
    plain = {"taskset_name": "plain", "tasks": [{**row, "name": "plain"}]}
    taskset = taskset or await tell("POST", "/v2/tasks/upload", plain)
    config = {"model": model["id"], "config": {"note": said, said: 1}, "state": {"error": said}}
    training = await tell("POST", "/v2/training-runs", config)
    for path in ("/v2/projects", "/v2/keys", "/v2/fleet-passes"):
        await tell("POST", path, {"name": said, "description": said})
    worker = bearer(world.key(scope="fleet"))
    joining = {"worker": "w" * 20, "name": said, "rollouts": 2, "version": said[:60]}
    await world.ask("POST", "/v2/fleet/join", worker, joining)
    tool = {"name": said, "description": said, "parameters": {"properties": {said: {"type": said}}}}
    task = {"id": said, "description": said, "args": {"properties": {said: {"enum": [said]}}}}
    offered = {**MANIFEST, "tools": [tool], "tasks": [task], "capabilities": [{"name": said}]}
    built, environment = build(world.parts.store, lines=[said], manifest=offered, error=said)
    run = new_id()
    call = {"id": said, "name": said, "arguments": {said: said}}
    steps = [
        {"source": "user", "messages": [{"role": "user", "content": [text(said)]}], **at(0)},
        {"source": "agent", "content": said, "reasoning": said, "tool_calls": [call], **at(1)},
        {
            "source": "tool",
            "call": call,
            "result": {"content": [text(said)]},
            "error": said,
            **at(2),
        },
    ]
    run = put_run(world.parts.store, steps, slug=said, model=said, error=said, content=said)
    recorded = record(world.parts, said, {said: [0.0, {"status": "error", "error": said}]})
    return {
        "model_id": model["id"],
        "job_id": recorded,
        "trace_id": run,
        "other_id": entered,
        "taskset_id": taskset["taskset_id"],
        "run_id": training.get("id", "0" * 32),
        "build_id": dashed(built),
        "environment_id": environment,
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ODD)
async def test_no_page_and_no_export_is_changed_by_what_somebody_wrote(world, kind):
    said = f"{MARK}{ODD[kind]}{MARK}"
    ids = await filled(world, said)
    headers = [*bearer(world.key()), *SAME_SITE]
    shown = 0
    for route in page_routes():
        if route.method != "GET" or route.path.startswith(("/static", "/favicon")):
            continue
        query = "?text=" + MARK if route.path.startswith("/search") else ""
        answer = await world.ask("GET", route.at(ids) + query, [*headers, *HTML])
        assert answer.status < 500, (route, answer.text[:300])
        kind_of = answer.headers.get("content-type", "")
        if kind_of.startswith("text/html"):
            assert Looked(answer.text).found == [], route
        elif "json" in kind_of:
            for line in answer.text.split("\n") if "jsonl" in route.path else [answer.text]:
                json.loads(line or "null")
        else:
            assert not kind_of.startswith(("image/svg", "application/xhtml", "text/xml")), route
        shown += MARK in answer.text
    assert shown >= 12
    for path in (f"/v2/tasksets/{ids['taskset_id']}/export", f"/v2/trace/{ids['trace_id']}/full"):
        answer = await world.ask("GET", path, headers)
        assert answer.status == 200
        assert MARK in json.dumps(answer.json(), ensure_ascii=False)


@pytest.mark.slow
async def test_an_export_gives_back_what_was_written(world):
    for number, odd in enumerate(ODD.values()):
        row = {
            "name": f"row-{number}",
            "env": {"name": "shop"},
            "task_id": "buy",
            "args": {"x": odd},
        }
        body = {"taskset_name": f"set-{number}", "tasks": [row]}
        made = (await world.ask("POST", "/v2/tasks/upload", bearer(world.key()), body)).json()
        path = f"/tasksets/{made['taskset_id']}/rows.jsonl"
        answer = await world.ask("GET", path, bearer(world.key()))
        (line,) = answer.text.strip("\n").split("\n")
        assert json.loads(line)["args"] == {"x": odd}


async def test_half_a_surrogate_pair_is_refused_everywhere(world):
    half = json.dumps(
        {"name": HALF, "taskset_name": HALF, "tasks": [], "config": {"x": HALF}}
    ).encode()
    kind = (b"content-type", b"application/json")
    for path in (
        "/v2/projects",
        "/v2/keys",
        "/v2/fleet-passes",
        "/v2/tasks/upload",
        "/v2/training-runs",
    ):
        answer = await world.ask("POST", path, [*bearer(world.key()), kind], half)
        assert answer.status in (400, 422), (path, answer.status)
    assert "half of a surrogate" in answer.text
