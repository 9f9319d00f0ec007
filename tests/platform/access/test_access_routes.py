"""Every route of the application, without a key, with a key that may too little, and with another team's ids."""

import re

import httpx
import pytest

from hud.platform.access import Identity
from hud.platform.access.middleware import is_open
from hud.platform.application import PlatformConfig, create_app
from hud.platform.store.tables import LOCAL_TEAM
from hud.trace import dashed, new_id

PATHS_OF_FASTAPI = {"/openapi.json", "/docs", "/docs/oauth2-redirect"}


@pytest.fixture
async def server(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as api:
        yield api, app.state.parts, app
    app.state.parts.close()


def routes(app):
    """Yield method and path of every HTTP route."""
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            yield method.upper(), path


def fill(path, ids):
    """Put ids into a path's parameters; what is not named gets an id that is nobody's."""
    ids = {"call": f"{'0' * 32}:generateContent", **ids}
    return re.sub(r"{([^}:]+)(:path)?}", lambda found: ids.get(found[1], "0" * 32), path)


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def admin(platform, team):
    return bearer(platform.keys.mint("admin", team, scopes=("admin",))[1])


async def test_without_a_key_nothing_answers_but_what_is_open(server):
    api, _, app = server
    tried = 0
    for method, path in routes(app):
        answer = await api.request(method, fill(path, {}))
        if is_open(path):
            assert answer.status_code != 401, (method, path)
        else:
            assert answer.status_code == 401, (method, path, answer.status_code)
            assert "key" in answer.json()["detail"]
        tried += 1
    assert tried > 60


async def test_what_is_open_is_what_was_meant_to_be(server):
    _, _, app = server
    opened = {path for _, path in routes(app) if is_open(path)}
    assert opened == {
        "/healthz",
        "/readyz",
        "/metrics",
        "/auth/device",
        "/auth/device/code",
        "/auth/device/token",
        "/uploads/{build_id}",
        "/downloads/{token}/{file}",
        "/sdk-events/cli",
        "/v3/api/sdk-events/cli",
    }


@pytest.mark.parametrize("secret", ["hud_nonsense", "nonsense", "hudpass_e30.0", "hudpass_", ""])
async def test_what_is_no_key_opens_nothing(server, secret):
    api, _, _ = server
    assert (await api.get("/v2/jobs", headers=bearer(secret))).status_code == 401


async def test_a_credential_without_scopes_is_refused_by_every_route(server):
    api, platform, app = server
    nothing = bearer(platform.passes.make(Identity(LOCAL_TEAM, frozenset()), 60))
    for method, path in routes(app):
        if not is_open(path):
            answer = await api.request(method, fill(path, {}), headers=nothing)
            assert answer.status_code == 403, (method, path, answer.status_code, answer.text)


async def test_a_key_that_may_only_read_changes_nothing(server):
    api, platform, app = server
    reader = bearer(platform.keys.mint("reader", LOCAL_TEAM, scopes=("read",))[1])
    for method, path in routes(app):
        if method != "GET" and not is_open(path):
            answer = await api.request(method, fill(path, {}), headers=reader)
            assert answer.status_code == 403, (method, path, answer.status_code)


async def own(api, headers):
    """Make one thing of each kind; returns their ids by the names of path parameters."""

    async def post(path, body):
        answer = await api.post(path, json=body, headers=headers)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    texts = ["Say hello to the world."] * 8
    sizes = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}
    model = await post(
        "/v2/models/create", {"name": "secret-model", "texts": texts, "sizes": sizes}
    )
    job, trace = new_id(), new_id()
    await post(f"/v2/trace/job/{job}/enter", {"name": "secret-job"})
    await post(f"/v2/trace/{trace}/enter", {"job_id": job, "task_slug": "secret-task"})
    rows = [{"name": "secret-row", "env": {"name": "e"}, "task_id": "t"}]
    taskset = await post("/v2/tasks/upload", {"taskset_name": "secret-set", "tasks": rows})
    run = await post(
        "/v2/training-runs", {"model": model["id"], "config": {"secret": 1}, "state": {}}
    )
    project = await post("/v2/projects", {"name": "secret-project"})
    build = await post("/v2/builds/upload-url", {})
    key = await post("/v2/keys", {"name": "secret-key"})
    return {
        "model_id": model["id"],
        "checkpoint_id": "base",
        "job_id": job,
        "trace_id": trace,
        "task_run_id": trace,
        "taskset_id": taskset["taskset_id"],
        "name": "secret-set",
        "run_id": run["id"],
        "project_id": project["id"],
        "build_id": dashed(build["build_id"]),
        "reference": key["id"],
    }


async def snapshot(api, headers):
    paths = ("models", "jobs", "tasksets", "projects", "training-runs", "keys")
    return {path: (await api.get(f"/v2/{path}", headers=headers)).json() for path in paths}


async def test_no_route_shows_or_changes_what_is_another_team_s(server):
    api, platform, app = server
    mine, theirs = admin(platform, LOCAL_TEAM), admin(platform, new_id())
    ids = await own(api, mine)
    before = await snapshot(api, mine)
    bodies = [{}, {"source_model_id": ids["model_id"], "name": "x"}, {"checkpoint_id": "base"}]
    for method, path in routes(app):
        if is_open(path) or path in PATHS_OF_FASTAPI or "{" not in path:
            continue
        for body in bodies if method != "GET" else [None]:
            answer = await api.request(method, fill(path, ids), json=body, headers=theirs)
            if path == "/runtime/sessions/{session_id}":  # Ending what is not there is no error.
                assert answer.json()["status"] == "unknown"
                continue
            assert answer.status_code in (400, 403, 404, 409, 422), (method, path, answer.text)
            assert "secret" not in answer.text.replace(ids["name"], ""), (method, path)
    assert await snapshot(api, mine) == before


async def test_bodies_that_name_another_team_s_things_find_nothing(server):
    api, platform, _ = server
    mine, theirs = admin(platform, LOCAL_TEAM), admin(platform, new_id())
    ids = await own(api, mine)
    own_trace = new_id()
    tried = [
        ("/v2/models/fork", {"source_model_id": ids["model_id"], "name": "stolen"}),
        ("/v2/models/fork", {"source_model_id": "secret-model", "name": "stolen"}),
        ("/v2/training-runs", {"model": ids["model_id"], "config": {}, "state": {}}),
        (f"/v2/trace/job/{ids['job_id']}/enter", {"name": "mine now"}),
        (f"/v2/trace/{ids['trace_id']}/exit", {"status": "completed", "reward": 1.0}),
        ("/v2/tasks/upload", {"taskset_id": ids["taskset_id"], "tasks": []}),
        ("/v2/builds/trigger", {"build_id": ids["build_id"], "name": "x"}),
        (f"/trace/{ids['trace_id']}/telemetry-upload", {"telemetry": []}),
        ("/v1/chat/completions", {"model": "secret-model", "messages": []}),
        ("/v1/chat/completions", {"model": ids["model_id"], "messages": []}),
    ]
    for path, body in tried:
        answer = await api.post(path, json=body, headers=theirs)
        assert answer.status_code in (400, 404), (path, answer.status_code, answer.text)
    entered = {"job_id": ids["job_id"], "task_slug": "x"}
    await api.post(f"/v2/trace/{own_trace}/enter", json=entered, headers=theirs)
    runs = (await api.get(f"/v2/jobs/{ids['job_id']}/traces", headers=mine)).json()
    assert [run["id"] for run in runs["items"]] == [ids["trace_id"]]


async def test_the_same_names_live_beside_each_other(server):
    api, platform, _ = server
    for headers in (admin(platform, LOCAL_TEAM), admin(platform, new_id())):
        await own(api, headers)
        models = (await api.get("/v2/models", headers=headers)).json()
        assert sum(model["model_name"] == "secret-model" for model in models["items"]) == 1


async def test_a_pass_of_the_fleet_opens_the_routes_of_workers_alone(server):
    api, platform, app = server
    worker = bearer(platform.keys.mint("spot", LOCAL_TEAM, scopes=("fleet",))[1])
    for method, path in routes(app):
        if not is_open(path) and not path.startswith("/v2/fleet/"):
            answer = await api.request(method, fill(path, {}), headers=worker)
            assert answer.status_code == 403, (method, path, answer.status_code)
    for path in ("/jobs", "/people", "/fleet"):
        page = await api.get(path, headers=worker)
        assert page.status_code == 403, path


async def test_the_pass_of_a_rollout_opens_inference_alone(server):
    api, platform, app = server
    who = Identity(LOCAL_TEAM, frozenset({"run"}), inference_only=True)
    agent = bearer(platform.passes.make(who, 60))
    for method, path in routes(app):
        if not is_open(path) and path.startswith(("/v2/", "/trace/", "/v3/", "/runtime/")):
            answer = await api.request(method, fill(path, {}), headers=agent)
            assert answer.status_code == 403, (method, path, answer.status_code)
    for path in ("/v2/models/a:b/head", "/v1/models/a:generateContent/train/optim-step"):
        assert (await api.put(path, json={}, headers=agent)).status_code == 403, path
    asked = {"model": "none", "messages": [{"role": "user", "content": "hello"}]}
    answer = await api.post("/v1/chat/completions", json=asked, headers=agent)
    assert answer.status_code == 404, answer.text
