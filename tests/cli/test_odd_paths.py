"""Paths of the command line that the system refuses, and bytes that are no text, are one sentence and exit 2."""

import pytest

from hud import input_files
from hud.cli.main import main
from hud.environment.sources.loader import load_file
from hud.errors import UsageError

LONG = "x" * 5000


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "file").write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (["audit", LONG], "File name too long"),
        (["eval", LONG, "agent"], "File name too long"),
        (["serve", LONG], "File name too long"),
        (["serve", f"{LONG}:env"], "File name too long"),
        (["grade", "0" * 32, "--with", LONG], "File name too long"),
        (["train", "tiny", LONG], "File name too long"),
        (["init", "dangling", "--force"], "File exists"),
    ],
)
def test_a_path_that_the_system_refuses_is_one_sentence(line, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line)
    shown = capsys.readouterr().err
    assert (ended.value.code, shown.count("\n")) == (2, 1), shown
    assert reason in shown
    assert len(shown) < 300


@pytest.mark.parametrize(
    "line", [["models", "checkpoints"], ["fleet", "pass", "create"], ["label", "0" * 32]]
)
def test_bytes_that_are_no_text_are_one_sentence(line, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*line, "\udcff"])
    assert (ended.value.code, capsys.readouterr().err) == (
        2,
        "Error: '\\udcff' is no text in UTF-8.\n",
    )


DEEP = b"a = " + b"[" * 20_000 + b"]" * 20_000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (DEEP, "nested too deep"),
        (b"steps = " + b"9" * 6000, "is not TOML: Exceeds the limit"),
        (b'a = 1\nname = "\xe9"\n', ":2: this is no text in UTF-8"),
        (b"# " + b"x" * (5 << 20), "has more than 4 MiB"),
        (b"[[[", "is not TOML"),
        (None, "is a directory"),
    ],
)
@pytest.mark.parametrize("line", [["train", "--config"], ["plan", "--config"]])
def test_settings_that_cannot_be_read_are_one_sentence(folder, capsys, line, content, reason):
    file = folder / "settings.toml"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    refused([*line, "settings.toml"], reason, capsys)


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.py"])
@pytest.mark.parametrize("target", ["loop", "/dev/zero", "/proc/self/mem"])
def test_tasks_of_a_device_or_a_loop_are_one_sentence(folder, capsys, monkeypatch, name, target):
    monkeypatch.setattr(input_files.read_input, "__defaults__", (1 << 20,))
    (folder / name).symlink_to(name if target == "loop" else target)
    refused(["eval", name, "agent"], "Error: ", capsys)


def test_an_import_of_a_device_is_one_sentence(folder, capsys, monkeypatch):
    monkeypatch.setattr(input_files.read_input, "__defaults__", (1 << 20,))
    (folder / "runs.json").symlink_to("/dev/zero")
    refused(["import", "runs.json", "--from", "atif"], "has more than 1 MiB", capsys)


def test_a_pass_and_a_prompt_that_are_no_text_are_one_sentence(folder, capsys):
    (folder / "odd.txt").write_bytes(b"\xff\xfe")
    for line in (
        ["fleet", "join", "http://127.0.0.1:1", "--pass-file", "odd.txt"],
        ["models", "prompt", "tiny", "--add", "odd.txt"],
    ):
        refused(line, "this is no text in UTF-8", capsys)


def refused(line, reason, capsys):
    with pytest.raises(SystemExit) as end:
        main(line)
    told = capsys.readouterr()
    text = told.err + told.out
    assert (end.value.code, reason.lower() in text.lower()) == (2, True), text
    assert "Traceback" not in text


def test_a_link_to_a_file_of_another_name_is_loaded(folder):
    (folder / "object-1").write_text("tasks = []\nraise KeyError('loaded')\n")
    (folder / "rows.py").symlink_to("object-1")
    with pytest.raises(UsageError, match="loaded"):
        load_file(folder / "rows.py")
