"""Paths of the command line that the system refuses, and bytes that are no text, are one sentence and exit 2."""

import pytest

from hud.cli.main import main

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
