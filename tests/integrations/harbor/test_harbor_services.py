"""Harbor's tasks with a Compose file are played beside its services, or left out by name where no engine runs them."""

import json

import pytest
from tests.integrations.containers.test_compose import ASK, BOX, DB, services_image
from tests.integrations.harbor.harbor_folders import write_task

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud_integrations.harbor import HarborEnvironment, import_folder
from hud_integrations.harbor.task_folder import read_folder

MAIN = {"environment": {"WORD": "own"}, "depends_on": {"db": {"condition": "service_healthy"}}}
TEST = f"""#!/bin/bash
if [ "$(cat greeting.txt)" = "$({ASK}) $WORD" ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
SOLVE = f'#!/bin/bash\necho "$({ASK}) $WORD" > greeting.txt\n'


def write(root, services, **options):
    """Write a task whose greeting is the answer of its database."""
    write_task(root, "greet", dockerfile=f"FROM {BOX}\nWORKDIR /app\n", test=TEST, **options)
    folder = root / "greet"
    (folder / "solution/solve.sh").write_text(SOLVE)
    (folder / "environment/docker-compose.yaml").write_text(json.dumps({"services": services}))
    return folder


@pytest.mark.slow
async def test_a_task_is_played_with_its_services(tmp_path):
    services_image()
    write(tmp_path / "in", {"main": MAIN, "db": DB})
    _, left_out = import_folder(tmp_path / "in", tmp_path / "out")
    assert left_out == []
    assert "engine=True" in (tmp_path / "out/env.py").read_text()
    tasks = Taskset.from_file(tmp_path / "out")
    oracle = (await tasks.run(ScriptedAgent(tasks[0].environment.oracle))).runs[0]
    assert oracle.reward == 1.0, oracle.trace.error

    async def nothing(run):
        return "done"

    assert (await tasks.run(ScriptedAgent(nothing))).runs[0].reward == 0.0


@pytest.mark.slow
async def test_the_main_service_may_have_an_image_of_its_own(tmp_path):
    services_image()
    folder = write(tmp_path / "in", {"main": {**MAIN, "image": BOX, "working_dir": "/app"}, "db": DB})  # fmt: skip
    (folder / "environment/Dockerfile").unlink()
    env = HarborEnvironment(tmp_path / "in", engine=True)
    run = (await Taskset("greet", env.all_tasks()).run(ScriptedAgent(env.oracle))).runs[0]
    assert run.reward == 1.0, run.trace.error


def test_without_an_engine_the_task_is_left_out_by_name(tmp_path, monkeypatch):
    write(tmp_path / "in", {"main": MAIN, "db": DB})
    monkeypatch.setattr("hud_integrations.harbor.importing.has_engine", lambda: False)
    with pytest.raises(UsageError, match=r"environment/docker-compose\.yaml"):
        import_folder(tmp_path / "in", tmp_path / "out")


def test_what_a_service_cannot_have_leaves_its_task_out_by_name(tmp_path):
    folder = write(tmp_path / "in", {"db": {**DB, "privileged": True}})
    task = read_folder(folder, "greet", True, services=True)
    assert task.refused == ["environment/docker-compose.yaml: services.db.privileged is refused"]
