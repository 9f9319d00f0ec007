"""Export of tasks as Harbor folders: the prompt is the instruction, the answer a file, our grader the test.

Only tasks whose grader reads the answer alone can be exported: Harbor's container has neither our tools nor our sandboxes.
Tasks that were imported from Harbor are copied as they are.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from hud.client.archives import files_of
from hud.environment import Task
from hud.errors import RolloutError, UsageError
from hud.eval import Taskset
from hud.exchange.left_out import LeftOut
from hud_integrations.harbor.environment import HarborEnvironment
from hud_integrations.harbor.wheel import wheel_name, write_wheel
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.shared.task_prompts import beyond_answers, prompt_messages

ANSWER = "/app/answer.txt"
_TOML = """schema_version = "1.4"

[metadata]
source = {source}

[verifier]
timeout_sec = 600.0

[agent]
timeout_sec = 900.0
"""
_DOCKERFILE = f"""FROM python:3.12-slim
COPY {wheel_name()} /tmp/
RUN pip install --no-cache-dir /tmp/{wheel_name()}
WORKDIR /app
"""
_TEST = """#!/bin/bash
# Grade /app/answer.txt with the environment in /tests/source.
mkdir -p /logs/verifier
python3 /tests/grade.py /app/answer.txt /logs/verifier/reward.txt
"""
_GRADE = '''"""Grades an answer: python grade.py ANSWER REWARD; both are files."""

import asyncio
import json
import sys
from pathlib import Path

from hud.environment import load_environment
from hud.trace import Trace

HERE = Path(__file__).parent
TASK = json.loads((HERE / "task.json").read_text())


async def grade(answer: str) -> float:
    environment = load_environment(HERE / "source" / TASK["file"], name=TASK["env"])
    async with environment.run() as run:
        await run.start(TASK["id"], TASK["args"])
        return float((await run.grade(answer, Trace(content=answer)))["score"])


given = Path(sys.argv[1])
answer = given.read_text().strip() if given.is_file() else ""
Path(sys.argv[2]).write_text(str(asyncio.run(grade(answer))))
'''


def export_tasks(taskset: Taskset, output: Path) -> tuple[int, list[LeftOut]]:
    """Write a folder for each task into the new folder `output`; returns their number, and what was left out.

    Raises `UsageError` if `output` exists, or if no task can be exported.
    """
    if output.exists():
        raise UsageError(f"{output} exists; name a new folder with -o.")
    written, left_out = 0, []
    sources: dict[Path, list[Path]] = {}
    for slug, task in taskset.items():
        problem = _refusal(task)
        if problem is None:
            try:
                _write(task, output / slug, sources)
                written += 1
                continue
            except RolloutError as error:
                problem = f"its prompt could not be made: {error}"
        left_out.append(LeftOut(slug, problem, is_task=True))
    if not written:
        reasons = sorted({omission.part for omission in left_out})
        raise UsageError(
            f"No task of {taskset.name!r} can be a Harbor folder: {'; '.join(reasons)}."
        )
    return written, left_out


def _refusal(task: Task) -> str | None:
    """Return the reason why a task cannot be exported, or None."""
    environment = task.environment
    if environment is None or environment.source_file is None:
        return f"its environment {task.env!r} is not on this machine"
    if isinstance(environment, HarborEnvironment):
        return None
    if task.verifier is not None:
        return "it has a verifier task"
    if task.runtime_config:
        return "it has a runtime_config"
    return beyond_answers(environment)


def _write(task: Task, folder: Path, sources: dict[Path, list[Path]]) -> None:
    """Write one task; `sources` caches the files of environments, listed before anything is written among them."""
    environment = task.environment
    assert environment is not None
    assert environment.source_file is not None
    if isinstance(environment, HarborEnvironment):
        shutil.copytree(environment.folder_of(task), folder, symlinks=True)
        return
    source = Path(environment.source_file).resolve()
    if source.parent not in sources:
        sources[source.parent] = files_of(source.parent)
    prompt = "\n\n".join(message.text for message in wait_for(prompt_messages(task)))
    row = {"file": source.name, "env": task.env, "id": task.id, "args": task.args}
    files = {
        "instruction.md": f"{prompt}\n\nWrite your answer to `{ANSWER}`.\n",
        "task.toml": _TOML.format(source=json.dumps(f"{task.env}/{task.slug}")),
        "environment/Dockerfile": _DOCKERFILE,
        "tests/test.sh": _TEST,
        "tests/grade.py": _GRADE,
        "tests/task.json": json.dumps(row, indent=2),
    }
    for name, text in files.items():
        _parent(folder / name).write_text(text)
    _add_wheel(folder)
    for file in sources[source.parent]:
        shutil.copyfile(
            file, _parent(folder / "tests" / "source" / file.relative_to(source.parent))
        )


def _add_wheel(folder: Path) -> None:
    """Put the package's wheel beside a task's Dockerfile; tasks of one export share its disk space."""
    wheel = folder / "environment" / wheel_name()
    for other in folder.parent.glob(f"*/environment/{wheel_name()}"):
        try:
            os.link(other, wheel)
        except OSError:  # A file system without links.
            shutil.copyfile(other, wheel)
        return
    write_wheel(wheel)


def _parent(path: Path) -> Path:
    """Create a file's folder, and return the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
