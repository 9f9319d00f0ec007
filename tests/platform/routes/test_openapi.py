"""No request, however odd, makes the server fail: generated from its own description of itself."""

import re

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from hud.platform.application import PlatformConfig, create_app
from hud.platform.store.tables import LOCAL_TEAM

SLOW_OR_OUTWARD = re.compile("/v2/models/(create|add)|/v2/fleet/take")
"""Fetches from the hub, computes for seconds, or waits for work by design."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_request_makes_the_server_fail(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    _, secret = app.state.parts.keys.mint("fuzz", LOCAL_TEAM, scopes=("admin",))
    headers = {"authorization": f"Bearer {secret}"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    tried = []

    def attack(operation):
        @settings(
            max_examples=12,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def requests(case):
            answer = case.call(headers={**headers})
            assert answer.status_code < 500 or answer.status_code == 501, (
                operation.label,
                answer.status_code,
                answer.text,
            )

        requests()

    for result in schema.get_all_operations():
        operation = result.ok()
        if not SLOW_OR_OUTWARD.fullmatch(operation.path):
            attack(operation)
            tried.append(operation.label)
    assert len(tried) > 60
    app.state.parts.close()
