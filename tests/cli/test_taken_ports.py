"""Commands that serve bind their address first: one that is taken, or none, is one sentence, and nothing is announced."""

import socket

import pytest

from hud.cli.main import main

ENV = "from hud.environment import Environment\nenv = Environment('x')\n"
COMMANDS = {
    "serve": ["serve", "env.py"],
    "dev": ["dev", "env.py"],
    "up": ["up"],
    "receive": ["fleet", "receive", "weights", "--key-env", "RECEIVER_KEY"],
}
REFUSED = "Address already in use. Choose another --port, or 0 for any."
NO_NAME = "this is no name of a machine. Choose another --host."


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RECEIVER_KEY", "key")
    (tmp_path / "env.py").write_text(ENV)


def refusal(capsys, *line):
    with pytest.raises(SystemExit) as ended:
        main(list(line))
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    return shown.err.removeprefix("Error: ").strip()


@pytest.mark.parametrize("command", [*COMMANDS, "view"])
def test_a_port_that_is_taken_is_one_sentence(command, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = COMMANDS.get(command, ["view", "--no-browser"])
        said = refusal(capsys, *line, "--port", str(port))
    assert said == f"127.0.0.1:{port} cannot be listened on: {REFUSED}"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("a..b", NO_NAME),
        ("nothing.invalid", "Choose another --host."),
        ("203.0.113.9", "Cannot assign requested address. Choose another --host."),
    ],
)
def test_an_address_of_no_interface_is_one_sentence(command, host, reason, capsys):
    said = refusal(capsys, *COMMANDS[command], "--host", host, "--port", "8399")
    assert said.startswith(f"{host}:8399 cannot be listened on: ")
    assert "\n" not in said
    assert said.endswith((reason, "Choose another --host."))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_host_lets_nobody_in(command, capsys):
    """It listened on all interfaces."""
    said = refusal(capsys, *COMMANDS[command], "--host", "", "--port", "8399")
    assert said.startswith("--host is empty.")
