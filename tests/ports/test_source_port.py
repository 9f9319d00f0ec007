"""The port `RunSource`: formats of runs that join by an entry point."""

import asyncio

import pytest

import hud.client
from hud.cli.evaluation.importing import FORMATS
from hud.cli.main import run
from hud.client import connect
from hud.exchange import EnvironmentSource, RunSource, sources

DIARY = """
from hud.exchange import ForeignRun, RunSource
from hud.trace import AgentStep, Trace


def read(path):
    for day, text in enumerate(path.read_text().splitlines()):
        trace = Trace()
        trace.record(AgentStep(content=text))
        yield ForeignRun(foreign_id=f"diary:{day}", steps=trace.steps, content=text)


plug = RunSource(summary="diaries", recognizes=lambda path: path.suffix == ".diary", read=read)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield tmp_path
    hud.client.disconnect(tmp_path / "home")


def runs_of(name):
    async def read():
        jobs = (await connect().get("/v2/jobs"))["items"]
        (job,) = [job for job in jobs if job["name"] == name]
        return (await connect().get(f"/v2/jobs/{job['id']}/traces"))["items"]

    return asyncio.run(read())


def test_a_stranger_s_source_is_imported_again_and_again(home, stranger, monkeypatch, capsys):
    stranger("hud.sources", "diary", DIARY)
    monkeypatch.setitem(FORMATS, "diary", sources()["diary"])
    (home / "a.diary").write_text("one\n")
    assert run(["import", str(home / "a.diary")]) == 0
    assert "1 run imported" in capsys.readouterr().out
    (home / "a.diary").write_text("one\ntwo\n")
    assert run(["import", str(home / "a.diary")]) == 0
    assert "2 runs imported" in (shown := capsys.readouterr().out)
    assert "1 of them again" in shown
    rows = runs_of("a.diary")
    assert sorted((row["source"], row["foreign_id"], row["content"]) for row in rows) == [
        ("diary", "diary:0", "one"),
        ("diary", "diary:1", "two"),
    ]


@pytest.mark.parametrize("name", sorted(sources()))
def test_no_source_recognizes_what_is_not_its_own(tmp_path, name):
    source = sources()[name]
    assert isinstance(source, RunSource | EnvironmentSource)
    (tmp_path / "folder").mkdir()
    strangers = {
        "a.txt": b"words",
        "b.json": b"[1, 2]",
        "c.jsonl": b'{"a": 1}\n',
        "d.bin": b"\xff\x00",
    }
    for file, content in {**strangers, "empty.jsonl": b""}.items():
        (tmp_path / file).write_bytes(content)
        assert not source.recognizes(tmp_path / file), file
    assert not source.recognizes(tmp_path / "folder")
