"""The agent's own shell and editor, over SSH, in a real workspace."""

import base64
import contextlib
import shutil

import pytest

from hud import Environment
from hud.agents.native.bash import BashTool
from hud.agents.native.editor import EditorTool
from hud.capabilities.shell.ssh import SSHClient
from hud.environment import WorkspaceLimits
from hud.eval import LocalRuntime, Taskset
from hud.trace import ToolCall, ToolStep

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)


@contextlib.asynccontextmanager
async def connected():
    env = Environment("desk")
    shell = env.workspace(limits=WorkspaceLimits(memory_mb=256, disk_mb=32))
    async with env.run() as run:
        client = await SSHClient.connect(run.parts.of(shell).capability)
        try:
            yield client, run.parts.of(shell)
        finally:
            await client.close()


@pytest.fixture
async def place():
    async with connected() as found:
        yield found


@pytest.fixture
def client(place):
    return place[0]


@pytest.fixture
def bash(client):
    return caller(BashTool(client))


@pytest.fixture
def edit(client):
    return caller(EditorTool(client))


def caller(tool):
    async def call(*arguments, **named):
        result = await tool.call(arguments[0] if arguments else named)
        return result.content[0].text, result.is_error

    return call


async def test_the_shell_stays_where_the_last_command_left_it(bash):
    await bash(command="mkdir -p a/b; cd a/b; word='two words'; say() { echo said $1; }")
    assert await bash(command='pwd; echo "$word"; say it') == (
        "/workspace/a/b\ntwo words\nsaid it",
        False,
    )


async def test_status_errors_and_silence_are_told(bash):
    assert await bash(command="echo out; echo err >&2; false") == (
        "out\nerr\n[exit status 1]",
        False,
    )
    assert await bash(command="true") == ("[no output]", False)
    text, failed = await bash(command="echo 'never ends")
    assert "unexpected EOF" in text
    assert not failed
    assert (await bash(command="echo fine"))[0] == "fine"


@pytest.mark.slow
async def test_a_command_that_takes_too_long_takes_the_shell_with_it(bash):
    await bash(command="cd /tmp")
    text, failed = await bash(command="echo begun; sleep 60", timeout=2)
    assert text.startswith("begun\n[The command was stopped after 2 s")
    assert failed
    assert (await bash(command="pwd; pgrep -c sleep"))[0] == "/workspace\n0\n[exit status 1]"


async def test_ending_the_shell_begins_a_new_one(bash):
    assert (await bash(command="echo bye; exit 7"))[0].startswith(
        "bye\n[The shell ended with status 7"
    )
    assert (await bash(command="echo back"))[0] == "back"
    await bash(command="here=1")
    assert (await bash(restart=True))[0] == "A new shell is there."
    assert (await bash(command="echo [$here]"))[0] == "[]"


async def test_what_runs_on_in_the_background_holds_nothing_up(bash):
    assert (await bash(command="sleep 50 & echo started", timeout=5))[0] == "started"
    assert (await bash(command="cat; read line; echo [$line]", timeout=5))[0] == "[]"


@pytest.mark.parametrize("words", ["echo other", "printf other"])
async def test_output_of_the_background_around_a_commands_end_spoils_nothing(bash, words):
    """The end was read to the last byte received; its line was two writes, and lost with other output between them."""
    for command in [f"(while :; do {words}; done) & sleep 0.3; (exit 3)", *20 * ["(exit 3)"]]:
        text, failed = await bash(command=command, timeout=60)
        assert "[exit status 3]" in text
        assert not failed
    text, failed = await bash(command="kill %1; wait; echo back", timeout=60)
    assert "back" in text
    assert (await bash(command="echo fine", timeout=60))[0] == "fine"


async def test_a_shell_that_shows_its_commands_still_ends_them(bash):
    await bash(command="set -xv", timeout=5)
    assert "[exit status 3]" in (await bash(command="(exit 3)", timeout=5))[0]
    assert "fine" in (await bash(command="set +xv; echo fine", timeout=5))[0]


async def test_long_output_loses_its_middle(bash):
    text, _ = await bash(
        command="echo first; head -c 200000 /dev/zero | tr '\\0' x; echo; echo last"
    )
    assert text.startswith("first\nxxx")
    assert text.endswith("xxx\nlast")
    assert "bytes of output are left out here" in text
    assert len(text) < 31_000


async def test_wrong_arguments_are_errors_for_the_model(bash, edit):
    for arguments in ("not json", {}, {"command": 3}, {"command": "true", "timeout": "soon"}):
        assert (await bash(arguments))[1]
    for arguments in ("not json", {}, {"command": "view"}, {"command": "jump", "path": "x"}):
        assert (await edit(arguments))[1]


@pytest.mark.slow
async def test_files_are_created_viewed_and_edited(edit, client):
    assert await edit(command="create", path="a/b.txt", file_text="one\ntwo\nthree\n") == (
        "a/b.txt was created.",
        False,
    )
    assert (await edit(command="view", path="a/b.txt"))[
        0
    ] == "     1\tone\n     2\ttwo\n     3\tthree"
    assert (await edit(command="view", path="a/b.txt", view_range=[2, -1]))[0].startswith(
        "     2\ttwo"
    )
    await edit(command="str_replace", path="a/b.txt", old_str="two\n", new_str="2\n")
    await edit(command="insert", path="a/b.txt", insert_line=0, insert_text="zero")
    await edit(
        command="insert", path="/workspace/a/b.txt", insert_line=4, insert_text="four\nfive\n"
    )
    assert await client.read("a/b.txt") == b"zero\none\n2\nthree\nfour\nfive\n"
    assert (await edit(command="create", path="a/b.txt", file_text=""))[
        0
    ] == "a/b.txt was overwritten."
    assert (await edit(command="view", path="a/b.txt"))[0] == "[the file is empty]"


async def test_line_ends_and_odd_text_survive_edits(edit, client):
    await client.write("dos.txt", "a\r\nb\x0bc\u2028d\r\nlast")
    await edit(command="str_replace", path="dos.txt", old_str="last", new_str="end")
    await edit(command="insert", path="dos.txt", insert_line=3, insert_text="more")
    assert await client.read("dos.txt") == "a\r\nb\x0bc\u2028d\r\nend\nmore".encode()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"command": "view", "path": "nowhere"}, "nowhere: No such file"),
        ({"command": "view", "path": ".", "view_range": [1, 2]}, "folder"),
        ({"command": "view", "path": "f", "view_range": [9, 12]}, "view_range"),
        ({"command": "view", "path": "f", "view_range": "all"}, "view_range"),
        ({"command": "view", "path": "bin"}, "no text in UTF-8"),
        ({"command": "str_replace", "path": "f", "old_str": "x", "new_str": "y"}, "is not there"),
        ({"command": "str_replace", "path": "f", "old_str": "same", "new_str": "y"}, "2 times"),
        ({"command": "str_replace", "path": "f", "old_str": "", "new_str": "y"}, "empty"),
        ({"command": "insert", "path": "f", "insert_line": 3, "insert_text": "y"}, "0 to 2"),
        ({"command": "insert", "path": "f", "insert_line": 1}, "must be given"),
        ({"command": "create", "path": "/usr/x", "file_text": "y"}, "/usr/x"),
    ],
)
async def test_edits_that_cannot_be_say_why_and_change_nothing(edit, client, arguments, problem):
    await client.write("f", "same\nsame\n")
    await client.write("bin", b"\xff\xfe")
    text, failed = await edit(arguments)
    assert failed
    assert problem in text
    assert await client.read("f") == b"same\nsame\n"


async def test_pictures_are_shown_as_pictures(client):
    png = b"\x89PNG\r\n\x1a\n and so on"
    await client.write("shot.png", png)
    shown = await EditorTool(client).call({"command": "view", "path": "shot.png"})
    assert shown.content[0].mime_type == "image/png"
    assert base64.b64decode(shown.content[0].data) == png


async def test_folders_are_listed_two_levels_deep(edit, client):
    for path in ("a/b/c/d.txt", "a/e.txt", ".hidden/f", "g.txt"):
        await client.write(path, "")
    listed = await edit(command="view", path="/workspace")
    assert listed[0].split("\n") == [
        *[
            "/workspace/",
            "/workspace/a/",
            "/workspace/a/b/",
            "/workspace/a/e.txt",
            "/workspace/g.txt",
        ]
    ]


async def test_large_files_are_shown_in_part(edit, client):
    await client.write("long", "line of text\n" * 9000)
    text, _ = await edit(command="view", path="long")
    assert text.endswith("to 9000 are left out; view_range shows them]")
    assert len(text) < 31_000
    await client.write("wide", "x" * 100_000)
    assert len((await edit(command="view", path="wide"))[0]) < 31_000


async def test_steps_of_attached_tools_record_the_files_that_they_changed():
    env = Environment("desk")
    shell = env.workspace(limits=WorkspaceLimits(memory_mb=256, disk_mb=32))

    @env.template()
    async def write():
        yield "Write it."
        yield float((await shell.bash("cat note")).stdout == "done\n")

    async def agent(run):
        client = await run.open("ssh")
        run.attach(BashTool(client))
        assert [tool.native for tool in run.tools] == ["bash"]
        await run.call_tool(
            ToolCall(id="1", name="bash", arguments={"command": "echo done > note"})
        )
        await run.call_tool(ToolCall(id="2", name="bash", arguments={"command": "cat note"}))

    job = await Taskset("desk", [write()]).run(agent, runtime=LocalRuntime(env))
    assert job.reward == 1.0
    steps = [step for step in job.runs[0].trace.steps if isinstance(step, ToolStep)]
    assert [patch["path"] for patch in steps[0].extra["files"]["patches"]] == ["note"]
    assert "files" not in steps[1].extra
