"""The official `hud sync tasks` and `hud project`, and its `Taskset.from_api`."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow


def rows(server, name):
    found = server.get(f"/v2/tasksets/by-name/{name}")
    return {
        row["name"]: row
        for row in server.get(f"/v2/tasksets/{found['taskset_id']}/export")["tasks"]
    }


def test_tasks_go_up_once_and_only_what_changed_goes_again(official, server):
    first = official.json("sync", "tasks", "first-words", "env.py", "--yes")
    assert (first["status"], first["tasks_created"], first["tasks_updated"]) == ("synced", 4, 0)
    kept = rows(server, "first-words")
    assert {row["args"]["word"] for row in kept.values()} == {"red", "green", "blue", "yellow"}
    assert {(row["env"], row["scenario"]) for row in kept.values()} == {("words", "say")}

    again = official.json("sync", "tasks", "first-words", "env.py", "--yes")
    assert (again["status"], again["unchanged_count"], again["to_apply"]) == ("up_to_date", 4, [])

    changed = (official.folder / "env.py").read_text()
    changed += (
        "tasks[0].columns = {'split': 'test', 'difficulty': 1.5}\n"
        "tasks[0].agent_config = {'max_steps': 3}\n"
        "tasks.append(say(word='black', most=7))\n"
    )
    official.write("env.py", changed)
    planned = official.json("sync", "tasks", "first-words", "env.py", "--dry-run")
    assert (planned["create_count"], planned["update_count"]) == (1, 1)
    assert len(rows(server, "first-words")) == 4
    more = official.json("sync", "tasks", "first-words", "env.py", "--yes")
    assert (more["tasks_created"], more["tasks_updated"]) == (1, 1)
    kept = rows(server, "first-words")
    assert len(kept) == 5
    (row,) = [row for row in kept.values() if row["columns"]]
    assert row["columns"] == {"split": "test", "difficulty": 1.5}
    assert row["agent_config"] == {"max_steps": 3}
    last = official.json("sync", "tasks", "first-words", "env.py", "--yes")
    assert last["status"] == "up_to_date"


def test_every_field_of_a_task_comes_back_as_it_went_up(official):
    official.write(
        "env.py",
        "from hud import Environment, RuntimeConfig, RuntimeLimits, RuntimeResources, Task\n"
        "env = Environment('deep')\n"
        "@env.template(id='ask')\n"
        "async def ask(rows: list[dict], limit: float = 1.0, note: str | None = None):\n"
        "    yield 'say it'\n"
        "    yield 1.0\n"
        "@env.template(id='check')\n"
        "async def check(strict: bool = True):\n"
        "    yield ''\n"
        "    yield 1.0\n"
        "task = ask(rows=[{'b': [1, 2.5, None], 'a': 'é'}], limit=2, note=None)\n"
        "task.slug = 'the-deep-one'\n"
        "task.columns = {'tags': ['x', 'y'], 'n': 0}\n"
        "task.validation = [{'name': 'f', 'arguments': {'x': 1}}]\n"
        "task.runtime_config = RuntimeConfig(limits=RuntimeLimits(run_timeout_s=60),"
        " resources=RuntimeResources(cpu=2))\n"
        "task.verifier = check(strict=False)\n"
        "tasks = [task]\n",
    )
    assert official.json("sync", "tasks", "deep", "env.py", "--yes")["tasks_created"] == 1
    assert official.json("sync", "tasks", "deep", "env.py", "--yes")["status"] == "up_to_date"
    official.json("sync", "tasks", "deep", "--export", "out.json")
    (row,) = json.loads((official.folder / "out.json").read_text())
    assert row["slug"] == "the-deep-one"
    assert row["args"] == {"rows": [{"b": [1, 2.5, None], "a": "é"}], "limit": 2, "note": None}
    assert row["runtime_config"] == {
        "limits": {"run_timeout_s": 60},
        "resources": {"cpu": 2},
    }
    assert row["verifier"]["args"] == {"strict": False}


def test_a_taskset_is_fetched_by_name_and_by_id_and_played(official, server):
    server.create_model("reader")
    synced = official.json("sync", "tasks", "named", "env.py", "--yes")
    report = official.python(
        f"""
import asyncio, json
from hud import LocalRuntime, Taskset
from hud.agents import create_agent

async def main():
    by_name = Taskset.from_api("named")
    by_id = Taskset.from_api({synced["taskset_id"]!r})
    job = await by_name.run(create_agent("reader", max_steps=1), runtime=LocalRuntime("env.py"))
    print(json.dumps({{
        "slugs": [[task.slug for task in each] for each in (by_name, by_id)],
        "job": job.id,
        "rewards": [run.reward for run in job.runs],
    }}))
asyncio.run(main())
"""
    )
    by_name, by_id = report["slugs"]
    assert by_name == by_id
    assert len(by_name) == 4
    traces = server.get(f"/v2/jobs/{report['job']}/traces")["items"]
    assert sorted(trace["slug"] for trace in traces) == sorted(by_name)
    (job,) = [job for job in server.get("/v2/jobs")["items"] if job["id"] == report["job"]]
    assert job["taskset_name"] == "named"


def test_a_taskset_that_is_not_there_is_told(official):
    missing = official.json("eval", "no-such-taskset", "reader", "--yes", exit_code=2)
    assert "no-such-taskset" in missing["message"]


def test_arguments_that_a_deployed_environment_does_not_take_are_refused(official, server):
    official.write("deployed/env.py", (official.folder / "env.py").read_text())
    assert official.json("deploy", "deployed", "--yes")["success"]
    official.write(
        "tasks.json",
        json.dumps([{"env": "words", "id": "say", "slug": "odd", "args": {"colour": "red"}}]),
    )
    refused = official.json("sync", "tasks", "refused", "tasks.json", "--yes", exit_code=1)
    assert "colour" in json.dumps(refused)


def test_projects_are_listed_made_and_used(official, server):
    listed = official.json("project", "list")
    assert [one["name"] for one in listed if one["is_default"]] == ["default"]
    made = official.json("project", "create", "second-project", "--yes")
    assert made["can_create"]
    names = [one["name"] for one in server.get("/v2/projects")["items"]]
    assert "second-project" in names
    official.hud("project", "use", "second-project")
    synced = official.json("sync", "tasks", "in-second", "env.py", "--yes")
    assert server.get(f"/v2/tasksets/{synced['taskset_id']}")["project_id"] == made["id"]
