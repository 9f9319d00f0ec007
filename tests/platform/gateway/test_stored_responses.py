"""Stored responses have a bound in bytes for each team, and an age; the oldest are deleted first."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from hud.errors import NotFoundError
from hud_platform.gateway import stored_responses
from hud_platform.gateway.stored_responses import StoredResponses
from hud_platform.store import Store, tables

KIB = 1 << 10


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path)
    yield store
    store.close()


def keep(responses, team, identifier, size=8 * KIB):
    responses.keep(team, {"id": identifier}, [{"role": "user", "content": "x" * size}])


def stored(store, team):
    with store.read() as connection:
        rows = connection.execute(
            sa.select(tables.responses).where(tables.responses.c.team_id == team)
        ).all()
    return {row.id for row in rows}, sum(len(row.messages) + len(row.body) for row in rows)


def test_a_team_s_oldest_responses_go_first(store, monkeypatch):
    monkeypatch.setattr(stored_responses, "MOST_BYTES", 100 * KIB)
    responses = StoredResponses(store)
    keep(responses, "other", "theirs")
    for number in range(50):
        keep(responses, "team", f"response-{number}")
        assert responses.conversation("team", f"response-{number}"), "the next turn continues it"
        assert stored(store, "team")[1] <= 100 * KIB
    left = stored(store, "team")[0]
    assert left == {f"response-{number}" for number in range(50 - len(left), 50)}
    assert len(left) >= 8
    with pytest.raises(NotFoundError, match="no stored response 'response-0'.*30 days"):
        responses.conversation("team", "response-0")
    assert responses.conversation("other", "theirs"), "each team has its own bound"


def test_the_bound_holds_for_what_an_earlier_process_stored(store, monkeypatch):
    monkeypatch.setattr(stored_responses, "MOST_BYTES", 100 * KIB)
    for number in range(50):
        keep(StoredResponses(store), "team", f"response-{number}")
    assert stored(store, "team")[1] <= 100 * KIB


def test_deleted_responses_make_room(store, monkeypatch):
    monkeypatch.setattr(stored_responses, "MOST_BYTES", 100 * KIB)
    responses = StoredResponses(store)
    keep(responses, "team", "first")
    for number in range(50):
        keep(responses, "team", f"response-{number}")
        responses.remove("team", f"response-{number}")
    assert responses.conversation("team", "first")


def test_one_response_beyond_the_bound_is_kept_alone(store, monkeypatch):
    monkeypatch.setattr(stored_responses, "MOST_BYTES", 100 * KIB)
    responses = StoredResponses(store)
    for number in range(3):
        keep(responses, "team", f"response-{number}", 200 * KIB)
    assert stored(store, "team")[0] == {"response-2"}


def test_an_expired_response_is_not_found_and_deleted(store):
    responses = StoredResponses(store)
    keep(responses, "team", "old")
    with store.begin() as connection:
        old = datetime.now(UTC) - timedelta(days=31)
        connection.execute(sa.update(tables.responses).values(created_at=old))
    with pytest.raises(NotFoundError):
        responses.body("team", "old")
    keep(StoredResponses(store), "team", "new")
    assert stored(store, "team")[0] == {"new"}
