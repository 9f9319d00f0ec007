"""One thing of each kind in an attacked server, so that attacks have something to reach."""

from tests.dashboard.test_environments import build
from tests.security.server import bearer

from hud.trace import dashed, new_id

SECRET = "sesame"
"""Stands in everything that is made."""


async def post(server, path, body, headers):
    answer = await server.ask("POST", path, headers, body)
    assert answer.status == 200, (path, answer.text)
    return answer.json()


async def make(server, headers):
    """Make one thing of each kind; return ids by the names of path parameters."""
    texts = ["Say hello to the world."] * 8
    sizes = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}
    named = {"name": f"{SECRET}-model", "texts": texts, "sizes": sizes}
    model = await post(server, "/v2/models/create", named, headers)
    job, trace = new_id(), new_id()
    await post(server, f"/v2/trace/job/{job}/enter", {"name": f"{SECRET}-job"}, headers)
    run = {"job_id": job, "task_slug": f"{SECRET}-task", "model": f"{SECRET}-model"}
    await post(server, f"/v2/trace/{trace}/enter", run, headers)
    rows = [{"name": f"{SECRET}-row", "env": {"name": "shop"}, "task_id": "buy"}]
    taskset = {"taskset_name": f"{SECRET}-set", "tasks": rows}
    taskset = await post(server, "/v2/tasks/upload", taskset, headers)
    config = {"model": model["id"], "config": {"note": SECRET}, "state": {}}
    training = await post(server, "/v2/training-runs", config, headers)
    project = await post(server, "/v2/projects", {"name": f"{SECRET}-project"}, headers)
    key = await post(server, "/v2/keys", {"name": f"{SECRET}-key"}, headers)
    fleet_pass = await post(server, "/v2/fleet-passes", {"name": f"{SECRET}-pass"}, headers)
    worker = {"worker": "w" * 20, "name": f"{SECRET}-node", "rollouts": 2}
    node = await post(server, "/v2/fleet/join", worker, bearer(fleet_pass["key"]))
    value = {"value": SECRET}
    assert (
        await server.ask("PUT", f"/v2/secrets/{SECRET.upper()}_API_KEY", headers, value)
    ).status == 200
    built, environment = build(server.parts.store, lines=[f"{SECRET} is built"])
    return {
        "model_id": model["id"],
        "model": model["id"],
        "checkpoint_id": "base",
        "job_id": job,
        "trace_id": trace,
        "other_id": trace,
        "task_run_id": trace,
        "taskset_id": taskset["taskset_id"],
        "run_id": training["id"],
        "project_id": project["id"],
        "build_id": dashed(built),
        "environment_id": environment,
        "key_id": key["id"],
        "node_id": node["node"],
        "call": f"{model['id']}:generateContent",
    }
