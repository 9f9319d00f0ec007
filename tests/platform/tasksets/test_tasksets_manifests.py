"""Rows are checked against what their environment's build says of its tasks, whatever a strange image says there."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hud_platform.environments.manifests import misfits

ROW = {"name": "one", "env": "shop", "scenario": "buy", "args": {"n": "x"}}


def said(schema):
    return list(misfits([ROW], {"shop": {"tasks": [{"id": "buy", "args": schema}]}}))


def test_arguments_that_do_not_fit_are_named():
    (line,) = said({"properties": {"n": {"type": "integer"}}})
    assert line.startswith("Task 'one': argument 'n': 'x' is not of type 'integer'")
    assert said({"properties": {"n": {"type": "string"}}}) == []


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#/$defs/none"}, {"$ref": "#"}, {"type": 7}, {"$dynamicRef": "#x"}, True],
)
def test_schemas_that_are_none_are_passed_over(schema):
    assert said(schema) == []


def test_nothing_is_fetched_for_a_schema():
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert said({"$ref": f"http://127.0.0.1:{server.server_port}/secret"}) == []
        server.shutdown()
    assert asked == []
