"""What one team stores many of takes no time of others: lists are pages of the database, and look-ups read one row."""

import httpx
import pytest
import sqlalchemy as sa

from hud.errors import NotFoundError, UsageError
from hud.review.rater_agreement import MOST_RATERS
from hud.trace import new_id
from hud_platform.application import create_app
from hud_platform.models import registry as registries
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM, checkpoints, labels, models

MANY = 200


@pytest.fixture
async def api(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        client.parts = app.state.parts
        yield client
    app.state.parts.close()


@pytest.fixture
def many(api):
    """A team of many models of training clients, each with a save."""
    registry = api.parts.registry.of(LOCAL_TEAM)
    sizes = {"vocab_size": 300, "hidden": 16, "layers": 1, "max_context": 64}
    made = registry.create("first", ["a"], sizes=sizes)
    with api.parts.store.begin() as connection:
        row = dict(connection.execute(sa.select(models)).one()._mapping)
        rows = [
            {**row, "id": f"abcd{new_id()[4:]}", "slug": f"m-{n}", "name": f"tinker-a:train:{n}"}
            for n in range(MANY)
        ]
        connection.execute(sa.insert(models), rows)
        save = {"time": "2026-01-01T00:00:00+00:00", "user_metadata": None, "size": 1}
        node = {"parent_id": None, "step": 1, "name": "step-1", "folder": None}
        nodes = [
            {
                **node,
                "id": new_id(),
                "model_id": model["id"],
                "created_at": row["created_at"],
                "metrics": {registries.CLIENT_NAMES: {f"weights/{n:03}": save}},
            }
            for n, model in enumerate(rows)
        ]
        connection.execute(sa.insert(checkpoints), nodes)
    return registry, made, rows


@pytest.fixture
def read(monkeypatch):
    """Numbers of records that are made of rows, and of statements."""
    counted = {"records": 0}
    record = registries._record

    def noted(row):
        counted["records"] += 1
        return record(row)

    monkeypatch.setattr(registries, "_record", noted)
    return counted


def test_a_model_is_looked_up_by_its_row(many, read):
    registry, made, rows = many
    last = rows[-1]
    for reference in ("first", made.id, "FIRST", made.id[:12], last["name"], f" {last['slug']}"):
        read["records"] = 0
        assert registry.model(reference).id in (made.id, last["id"])
        assert read["records"] <= 1, reference
    for absent in ("none", "a\0b", "\ud800", "x" * 5000, ""):
        with pytest.raises(NotFoundError):
            registry.model(absent)
    with pytest.raises(UsageError, match="several models"):
        registry.model("abcd")


async def test_models_are_read_page_by_page(api, many, read):
    page = (await api.get("/v2/models?limit=5&offset=3")).json()
    assert len(page["items"]) == read["records"] == 5
    whole = (await api.get("/v2/models")).json()
    assert len(whole["items"]) == whole["total"] == page["total"] == MANY + 1
    last = (await api.get(f"/v2/models?limit=5&offset={MANY}")).json()
    assert len(last["items"]) == 1
    for odd in ("limit=-1", "offset=-5", "limit=99999999999999999999"):
        assert (await api.get(f"/v2/models?{odd}")).status_code == 422


async def test_saves_and_runs_of_a_team_are_read_by_few_statements(api, many):
    statements = []
    sa.event.listen(
        api.parts.store.engine,
        "before_cursor_execute",
        lambda *values: statements.append(values[2]),
    )
    page = (await api.get("/api/v1/checkpoints?limit=3")).json()
    assert page["cursor"]["total_count"] == MANY
    assert len(page["checkpoints"]) == 3
    runs = (await api.get("/api/v1/training_runs?limit=2")).json()
    assert (len(runs["training_runs"]), runs["cursor"]["total_count"]) == (2, MANY)
    end = (await api.get(f"/api/v1/training_runs?limit=20&offset={MANY - 1}")).json()
    assert len(end["training_runs"]) == 1
    assert (await api.get(f"/api/v1/training_runs?offset={MANY}")).json()["training_runs"] == []
    assert len(statements) < 60


async def test_raters_without_number_are_not_compared_each_with_each(api):
    trace = new_id()
    await api.post(f"/v2/trace/{trace}/enter", json={})
    label = {"kind": "run", "subject": trace, "name": "good", "value": 1, "rater": "main"}
    assert (await api.post("/v2/labels", json=label)).status_code == 200
    with api.parts.store.begin() as connection:
        row = dict(connection.execute(sa.select(labels)).one()._mapping)
        rows = [{**row, "id": new_id(), "rater": f"r{n}"} for n in range(MANY)]
        connection.execute(sa.insert(labels), rows)
    answer = (await api.get("/v2/labels/agreement?name=good")).json()
    assert len(answer["raters"]) == MANY + 1
    assert len(answer["pairs"]) <= MOST_RATERS * (MOST_RATERS - 1) / 2 + MOST_RATERS
