"""A job that is exported from one store and imported into another is equal there."""

import asyncio
import hashlib
import json
from base64 import b64encode

import pytest
from jsonschema import Draft202012Validator

import hud.client
from hud import Environment
from hud.cli.main import run
from hud.client import connect
from hud.eval import Taskset
from hud.trace import AgentStep, Sample, Step, ToolCall, ToolResult, ToolStep, Trace, Usage
from hud.trace.content import ImageContent, Message, TextContent
from hud.trace.sampled.pictures import Picture
from hud.trace.steps import SubagentStep
from hud.trace.trajectory_export import SCHEMA

PICTURE = b64encode(b"\x89PNG picture").decode()
env = Environment("shop")


@env.template()
async def buy(item: str = "tea"):
    answer = yield [
        Message(
            role="user",
            content=[
                TextContent(text=f"What does {item} cost?"),
                ImageContent(data=PICTURE, mimeType="image/png"),
            ],
        )
    ]
    if item == "glass":
        raise RuntimeError("the scales broke")
    score = {"tea": 1.0, "salt": 0.375}.get(item, 0.0) if answer == "3" else 0.0
    part = {"name": "price", "value": score, "weight": 1.0, "info": {"seen": [1, None]}}
    yield {"score": score, "subscores": [part], "info": {"why": "é\u2028"}}


async def agent(run):
    item = run.task.args["item"]
    call = ToolCall(id="1", name="price", arguments={"item": item})
    digest = hashlib.sha256(b"\x89PNG picture").hexdigest()
    shown = Picture(start=0, tokens=2, sha256=digest, pixels="ab" * 32, data=PICTURE)
    first = Sample(
        prompt_token_ids=[1, 2],
        output_token_ids=[3, 4],
        output_logprobs=[-0.1, -2.5],
        checkpoint="c" * 32,
        temperature=0.7,
        pictures=[shown],
    )
    usage = Usage(prompt_tokens=2, completion_tokens=2, cost_usd=0.25)
    run.record(AgentStep(reasoning="hm", tool_calls=[call], sample=first, usage=usage, model="m"))
    screen = {"type": "image", "data": PICTURE, "mimeType": "image/jpeg"}
    result = ToolResult(content=[ImageContent(data=PICTURE, mimeType="image/png")], isError=True)
    run.record(ToolStep(call=call, result=result, extra={"screenshot": screen, "state": {"n": 1}}))
    nested = Trace(trace_id="d" * 32, content="2")
    nested.record(Step(source="user", messages=[Message(content="Add.")]))
    nested.record(AgentStep(content="2", sample=Sample(output_token_ids=[9])))
    run.record(SubagentStep(subagent=nested, extra={"tool": "add", "reward": 1.0}))
    second = first.model_copy(
        update={"prompt_token_ids": [1, 2, 3, 4, 5], "swaps": [(1, "e" * 32)]}
    )
    run.record(AgentStep(content="3", sample=second, error="cut off", finish_reason="stop"))
    run.trace.content = "3"
    run.trace.extra["seed"] = 7


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Return a function that makes the store of a name the current one."""
    monkeypatch.delenv("HUD_API_URL", raising=False)
    opened = set()

    def use(name):
        monkeypatch.setenv("HUD_HOME", str(tmp_path / name))
        opened.add(tmp_path / name)

    yield use
    for home in opened:
        hud.client.disconnect(home)


def played():
    tasks = [buy(item=item) for item in ("tea", "salt", "milk", "glass")]
    return asyncio.run(Taskset("shop", tasks).run(agent, group=2))


def hud_command(*arguments):
    assert run([str(argument) for argument in arguments]) == 0


def asked(path):
    return asyncio.run(connect().get(path))


def exported(folder, job):
    folder.mkdir(exist_ok=True)
    hud_command("export", job, "-o", folder / "trajectories.jsonl")
    pictures = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".jsonl"
    }
    return (folder / "trajectories.jsonl").read_bytes(), pictures


def test_an_exported_job_is_equal_in_another_store_byte_for_byte(stores, tmp_path, capsys):
    stores("one")
    job = played()
    first = exported(tmp_path / "one-export", job.id)
    lines = [json.loads(line) for line in first[0].splitlines()]
    for line in lines:
        Draft202012Validator(json.loads(SCHEMA.read_bytes())).validate(line)
    assert len(first[1]) == 8 * 3
    assert PICTURE not in first[0].decode(), "pictures are files"
    rewards = asked(f"/v2/jobs/{job.id}")

    stores("two")
    hud_command("import", tmp_path / "one-export" / "trajectories.jsonl")
    assert "8 runs imported" in capsys.readouterr().out
    assert exported(tmp_path / "two-export", job.id) == first
    assert asked(f"/v2/jobs/{job.id}") == rewards
    rows = asked(f"/v2/jobs/{job.id}/traces")["items"]
    assert {row["source"] for row in rows} == {"jsonl"}
    sample = asked(f"/v2/trace/{rows[0]['trace_id']}/full")["trace"]["steps"]
    assert [step["sample"]["prompt_token_ids"] for step in sample if "sample" in step] == [
        [1, 2],
        [1, 2, 3, 4, 5],
    ]

    hud_command("import", tmp_path / "two-export" / "trajectories.jsonl")
    assert "8 runs imported" in (shown := capsys.readouterr().out)
    assert "8 of them again" in shown
    assert exported(tmp_path / "again", job.id) == first


def test_an_import_into_the_store_of_its_runs_changes_nothing(stores, tmp_path):
    stores("one")
    job = played()
    first = exported(tmp_path / "export", job.id)
    changed = first[0].replace(b'"reward":1.0', b'"reward":9.0')
    (tmp_path / "export" / "trajectories.jsonl").write_bytes(changed)
    hud_command("import", tmp_path / "export" / "trajectories.jsonl")
    assert exported(tmp_path / "after", job.id) == first
    rows = asked(f"/v2/jobs/{job.id}/traces")["items"]
    assert {row["source"] for row in rows} == {None}


def test_an_import_without_the_pictures_names_the_cure(stores, tmp_path, capsys):
    stores("one")
    job = played()
    exported(tmp_path / "export", job.id)
    (tmp_path / "export" / "trajectories.pictures").rename(tmp_path / "elsewhere")
    stores("two")
    assert run(["import", str(tmp_path / "export" / "trajectories.jsonl")]) == 2
    assert "keep the folder of pictures next to the file" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd"])
def test_a_picture_is_read_from_below_the_file_only(stores, tmp_path, capsys, path):
    stores("one")
    job = played()
    exported(tmp_path / "export", job.id)
    file = tmp_path / "export" / "trajectories.jsonl"
    line = json.loads(file.read_bytes().splitlines()[0])
    line["steps"][1]["messages"][0]["content"][1]["data"] = {"file": path}
    file.write_text(json.dumps(line) + "\n")
    stores("two")
    assert run(["import", str(file)]) == 2
    assert "is outside of" in capsys.readouterr().err


def test_a_line_of_another_form_is_named(stores, tmp_path, capsys):
    stores("two")
    (tmp_path / "bad.jsonl").write_text(
        '{"trace_id":"a","steps":[],"samples":[],"task_row":null}\n'
    )
    assert run(["import", str(tmp_path / "bad.jsonl")]) == 2
    assert "Line 1 of" in capsys.readouterr().err
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    assert run(["import", str(tmp_path / "other.jsonl")]) == 2
    assert "in no format that is imported" in capsys.readouterr().err
