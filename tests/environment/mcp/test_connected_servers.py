"""MCP servers of an environment: their tools are its tools; what becomes of one concerns only the runs that use it."""

import asyncio
import json
import sys
from pathlib import Path

import psutil
import pytest
from tests.environment.mcp.servers.serving import listening
from tests.environment.mcp.servers.shop import build

from hud import Environment
from hud.environment.mcp import ConnectedServer
from hud.errors import EnvironmentFault, InfrastructureFault, NotFoundError, UsageError
from hud.eval import Taskset
from hud.trace import ImageContent, ToolCall

SHOP = [sys.executable, str(Path(__file__).parent / "servers" / "shop.py")]


def world(*servers, **options):
    """Return an environment that has these servers (by default a fresh shop in this process)."""
    env = Environment("market")
    for server in servers or (build,):
        env.connect_mcp(server, **options)

    @env.template()
    async def shopping():
        answer = yield "Buy tea."
        yield float(answer == "tea")

    return env, shopping


async def say(run, tool, **arguments):
    """Call a tool of an environment's run."""
    return (await run.call_tool(tool, arguments)).result


async def names(run):
    return [spec.name for spec in await run.list_tools()]


def call(name, **arguments):
    return ToolCall(id=name, name=name, arguments=arguments)


@pytest.mark.slow
async def test_a_programs_tools_are_the_runs_tools_and_each_run_has_a_program_of_its_own():
    _, shopping = world(SHOP, name="shop", include=["add", "pid"])
    seen = []

    async def player(run):
        tools = {tool.name: tool for tool in run.tools}
        assert list(tools) == ["add", "pid"]
        assert tools["add"].description == "Put an item into the basket."
        assert tools["add"].parameters["required"] == ["item"]
        pid = await run.call_tool(call("pid"))
        await run.call_tool(call("add", item="milk"))
        basket = await run.call_tool(call("add", item="tea"))
        seen.append((pid.text, basket.text))
        run.trace.content = "tea"

    job = await Taskset("t", [shopping()]).run(player, group=2)
    assert [(run.reward, run.error) for run in job.runs] == [(1.0, None)] * 2
    assert [basket for _, basket in seen] == ["milk, tea"] * 2
    pids = {int(pid) for pid, _ in seen}
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
async def test_a_shared_server_is_one_for_all_runs_and_replaced_once_it_is_lost():
    env, _ = world(SHOP, name="shop", shared=True)
    async with env.run() as first, env.run() as second:
        await say(first, "add", item="milk")
        assert (await say(second, "add", item="tea")).text == "milk, tea"
        pid = (await say(first, "pid")).text
        with pytest.raises(EnvironmentFault, match="was lost: it ended with status 3"):
            await say(first, "die")
        with pytest.raises(EnvironmentFault, match="was lost: it ended with status 3"):
            await say(second, "add", item="salt")
    async with env.run() as third:
        assert (await say(third, "add", item="tea")).text == "tea"
        assert (await say(third, "pid")).text != pid


async def test_prefixes_and_filters_choose_what_the_environment_has():
    env, _ = world(build, name="shop", prefix="shop", exclude=["d*", "pid", "secret", "background"])
    async with env.run() as run:
        listed = await names(run)
        assert listed == [
            f"shop_{name}" for name in ("add", "total", "refuse", "picture", "papers", "hire")
        ]
        assert (await say(run, "shop_total", prices=[1, 2.5])).structured_content == {"total": 3.5}
        left_out = await say(run, "shop_die")
        assert left_out.is_error
        assert "There is no tool 'shop_die'" in left_out.text


@pytest.mark.parametrize("options", [{"include": ["ad"]}, {"exclude": ["ad"]}])
async def test_a_filter_that_names_no_tool_of_the_server_says_so(options):
    env, _ = world(build, name="shop", **options)
    with pytest.raises(EnvironmentFault, match=r"'shop' has no tool 'ad' \(it has: add, "):
        await env.run().open()


async def test_two_tools_of_one_name_are_refused():
    env, _ = world()
    env.connect_mcp(build, name="other")
    run = env.run()
    with pytest.raises(EnvironmentFault, match=r"two tools 'add'.*'other'; give it a prefix"):
        await run.open()
    await run.close()


@pytest.mark.slow
async def test_a_server_killed_in_mid_run_fails_that_run_alone_and_the_next_gets_a_fresh_one():
    _, shopping = world(SHOP, name="shop")
    deadly = {1}

    async def player(run):
        index = run.attempt
        await run.call_tool(call("add", item=str(index)))
        if index in deadly:
            deadly.remove(index)
            await run.call_tool(call("die", status=-9))
        run.trace.content = "tea"

    job = await Taskset("t", [shopping()]).run(player, group=3)
    failed = [run for run in job.runs if run.error]
    assert [run.attempt for run in failed] == [1]
    assert (failed[0].failure_kind, failed[0].reward) == ("agent", 0.0), "its own call ended it"
    assert failed[0].error.startswith("The MCP server 'shop' (")
    assert (
        "was lost: it was killed by SIGKILL; it said: Starting the shop ... / the shop burnt down"
        in failed[0].error
    )
    again = await Taskset("t", [shopping()]).run(player)
    assert [run.reward for run in again.runs] == [1.0]


@pytest.mark.slow
async def test_a_server_that_dies_between_two_calls_is_noticed_before_the_grade():
    _, shopping = world(SHOP, name="shop")

    async def player(run):
        pid = int((await run.call_tool(call("pid"))).text)
        psutil.Process(pid).kill()
        while psutil.pid_exists(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        run.trace.content = "tea"

    (run,) = (await Taskset("t", [shopping()]).run(player)).runs
    assert run.failure_kind == "environment"
    assert "was lost: it was killed by SIGKILL" in run.error


@pytest.mark.slow
async def test_nothing_that_a_server_started_outlives_the_run():
    marked = f"mark-{id(object())}-market"
    env, _ = world(SHOP, name="shop", env={"MARK": marked})

    def left():
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(marked in word for word in process.info["cmdline"] or ())
        ]

    async with env.run() as run:
        await say(run, "background")
        # It forks on, and a look that falls in between finds nobody.
        assert any(left() for _ in range(100))
    assert not left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "options", "problem"),
    [
        (
            ["no-such-program"],
            {},
            r"'no-such-program' \(no-such-program\) cannot be used: there is no command 'no-such-program'; "
            "install it, or give its path",
        ),
        ([*SHOP, "broken"], {}, r"it ended with status 7; it said: no database to talk to\."),
        (
            [sys.executable, "-c", "import time; time.sleep(60)"],
            {"start_timeout": 0.3},
            r"cannot be used: no answer within 0\.3 s\.",
        ),
        (SHOP, {"cwd": "/no/such/folder"}, "there is no folder /no/such/folder to start it in"),
        ({"url": "http://127.0.0.1:9/mcp"}, {}, "http://127.0.0.1:9/mcp"),
    ],
    ids=["missing", "broken", "silent", "folder", "nobody there"],
)
async def test_a_server_that_cannot_be_used_fails_the_run_with_the_reason(server, options, problem):
    env, _ = world(server, **options)
    run = env.run()
    with pytest.raises((EnvironmentFault, InfrastructureFault), match=problem):
        await run.open()
    await run.close()


@pytest.mark.slow
async def test_what_a_tool_refuses_and_what_takes_too_long_are_error_results():
    env, _ = world(SHOP, name="shop", timeout=2.0)
    async with env.run() as run:
        refused = await say(run, "refuse")
        assert (refused.is_error, refused.text) == (
            True,
            "Error executing tool refuse: the till is closed",
        )
        late = await say(run, "dawdle", seconds=30)
        assert (late.is_error, late.text) == (True, "dawdle: no answer within 2 s.")
        shorter = (await run.call_tool("dawdle", {"seconds": 30}, timeout=0.1)).result
        assert shorter.text == "dawdle: no answer within 0.1 s."
        wrong = await say(run, "total", prices="many")
        assert wrong.is_error
        garbled = (await run.call_tool("total", "{")).result
        assert garbled.text == "total: the arguments must be a JSON object, not '{'."
        assert (await say(run, "add", item="tea")).text == "tea"


@pytest.mark.slow
@pytest.mark.parametrize("server", [SHOP, build], ids=["program", "object"])
async def test_a_list_of_tools_that_changes_is_followed_and_told_in_the_trace(server):
    _, shopping = world(server, name="shop")

    async def player(run):
        assert "clerk" not in [tool.name for tool in run.tools]
        await run.call_tool(call("hire"))
        assert "clerk" in [tool.name for tool in run.tools]
        run.trace.content = (await run.call_tool(call("clerk"))).text

    (run,) = (await Taskset("t", [shopping()]).run(player)).runs
    assert (run.error, run.trace.content) == (None, "at your service")
    hired, asked = [step for step in run.trace.steps if step.source == "tool"]
    assert [tool["name"] for tool in hired.extra["tools"]][-1] == "clerk"
    assert "tools" not in asked.extra


async def test_images_and_resources_are_kept():
    _, shopping = world(build, name="shop")

    async def player(run):
        picture = await run.call_tool(call("picture"))
        assert isinstance(picture.content[0], ImageContent)
        papers = await run.call_tool(call("papers"))
        texts = [getattr(block, "text", "an image") for block in papers.content]
        assert texts == [
            "[resource shop://terms]\nNo returns.",
            "an image",
            "[resource shop://zip, application/zip, 4 bytes]",
            "[resource terms at shop://terms]",
            "[audio, audio/wav, 4 bytes]",
        ]
        run.trace.content = "tea"

    (run,) = (await Taskset("t", [shopping()]).run(player)).runs
    assert run.error is None
    kept = [step for step in run.trace.steps if step.source == "tool"][1].extra["resources"]
    assert [block["type"] for block in kept] == ["resource"] * 3 + ["resource_link", "audio"]
    assert kept[2]["resource"]["blob"] == "UEsxMg=="


async def test_hooks_and_templates_use_the_server_too():
    env = Environment("market")
    shop = env.connect_mcp(build, name="shop", include=["total"])

    @env.initialize
    async def stock():
        await env.opened(shop).call("add", {"item": "tea"})

    @env.template()
    async def reading():
        terms = await env.opened(shop).read("shop://terms")
        yield terms.text
        basket = await env.opened(shop).call("add", {"item": "salt"})
        yield float(basket.text == "tea, salt")

    async with env.run() as run:
        assert (await run.start("reading", {})).prompt == "[resource shop://terms]\nNo returns."
        assert (await run.grade("", None))["score"] == 1.0
        with pytest.raises(EnvironmentFault, match="did not give the resource shop://none"):
            await run.parts.of(shop).read("shop://none")


@pytest.mark.slow
async def test_a_server_at_an_address_has_a_session_for_each_run_and_gets_its_headers(monkeypatch):
    monkeypatch.setenv("SHOP_KEY", "open-sesame")
    async with listening(key="open-sesame") as shop:
        env, _ = world(
            {"shop": {"url": shop.url, "headers": {"Authorization": "Bearer ${SHOP_KEY}"}}}
        )
        async with env.run() as first, env.run() as second:
            assert (await say(first, "add", item="tea")).text == "tea"
            assert (await say(first, "hire")).text == "hired"
            assert "clerk" in await names(first)
            assert (await say(second, "total", prices=[1])).structured_content == {"total": 1.0}
        sessions = {seen.get("mcp-session-id") for seen in shop.seen} - {None}
        assert len(sessions) == 2
        env, _ = world({"shop": {"url": shop.url}})
        with pytest.raises(EnvironmentFault, match="answered 401 Unauthorized; see its headers"):
            await env.run().open()


@pytest.mark.slow
async def test_a_server_at_an_address_that_comes_back_is_connected_again():
    async with listening() as shop:
        env, _ = world(shop.url)
        async with env.run() as run:
            assert (await say(run, "add", item="tea")).text == "tea"
            await shop.stop()
            await shop.start()
            assert (await say(run, "add", item="salt")).text == "salt"


@pytest.mark.slow
async def test_a_call_that_may_have_been_carried_out_is_not_sent_twice():
    async with listening() as shop:
        env, _ = world(shop.url)
        async with env.run() as run:
            waiting = asyncio.create_task(say(run, "dawdle", seconds=30))
            await asyncio.sleep(0.3)
            await shop.stop()
            await shop.start()
            cut = await waiting
            assert cut.is_error
            assert "it may have been carried out, or not" in cut.text
            assert (await say(run, "add", item="tea")).text == "tea"


@pytest.mark.slow
async def test_a_server_at_an_address_that_stays_away_fails_the_run():
    async with listening() as shop:
        env, _ = world(shop.url, reconnects=1)
        async with env.run() as run:
            await shop.stop()
            with pytest.raises(EnvironmentFault, match=r"'127\.0\.0\.1' \(http://.*\) was lost: "):
                await say(run, "add", item="tea")
            await shop.start()


def test_the_common_json_is_read_with_all_its_ways_to_say_it(tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text(
        json.dumps(
            {
                "mcpServers": {
                    "files": {"command": "npx", "args": ["-y", "files"], "env": {"A": "1"}},
                    "crm": {
                        "type": "http",
                        "url": "https://crm.example/mcp",
                        "headers": {"X": "y"},
                    },
                    "old": {"serverUrl": "https://old.example/sse", "transport": "sse"},
                    "off": {"command": "nothing", "disabled": True, "alwaysAllow": ["x"]},
                }
            }
        )
    )
    env = Environment("configured")
    servers = env.connect_mcp_config(file, prefix=True, include={"crm": ["find"]})
    assert list(servers) == ["files", "crm", "old"]
    assert all(isinstance(server, ConnectedServer) for server in servers.values())
    assert servers["files"].source.where == "npx -y files"
    assert servers["crm"].source.transport == "streamable-http"
    assert servers["crm"].choice.named("find") == "crm_find"
    assert not servers["crm"].choice.takes("delete")
    assert servers["old"].source.url == "https://old.example/sse"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, 'An MCP configuration looks like {"mcpServers"'),
        ({"mcpServers": {"a": {}}}, "'a': it needs either a command or a url"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://x"}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"command": "x", "headers": {"a": "b"}}}}, "headers go with a url"),
        ({"mcpServers": {"a": {"url": "http://x", "args": ["b"]}}}, "args, env and cwd go with"),
        ({"mcpServers": {"a": {"command": "x", "shell": True}}}, "shell is not known"),
        ({"mcpServers": {"a": {"command": "x", "type": "http"}}}, "does not go with the rest"),
        ({"mcpServers": {"a": "npx thing"}}, "The MCP server 'a'"),
    ],
)
def test_a_configuration_that_cannot_be_used_says_why(config, problem):
    with pytest.raises(UsageError, match=problem):
        Environment("configured").connect_mcp_config(config)


def test_what_cannot_be_connected_is_refused_at_the_declaration(tmp_path):
    env = Environment("configured")
    with pytest.raises(NotFoundError, match="There is no file"):
        env.connect_mcp_config(tmp_path / "none.json")
    with pytest.raises(UsageError, match="no MCP server 'b' to choose tools of \\(a\\)"):
        env.connect_mcp_config({"a": {"command": "x"}}, include={"b": ["c"]})
    with pytest.raises(UsageError, match="not a int"):
        env.connect_mcp(3)
    with pytest.raises(UsageError, match="timeout and start_timeout are seconds above 0"):
        env.connect_mcp("http://127.0.0.1:9", timeout=0)
    with pytest.raises(UsageError, match="take a list of tool names, not 'add'"):
        env.connect_mcp("http://127.0.0.1:9", include="add")
    with pytest.raises(UsageError, match="takes one server"):
        env.connect_mcp({"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}})


@pytest.mark.slow
async def test_variables_are_filled_in_when_a_run_needs_them(monkeypatch):
    monkeypatch.delenv("SHOP_TOKEN", raising=False)
    env, _ = world(SHOP, name="shop", env={"KEY": "${SHOP_TOKEN}", "MODE": "${MODE:-test}"})
    with pytest.raises(
        EnvironmentFault, match="'shop' needs SHOP_TOKEN; set it in the environment"
    ):
        await env.run().open()
    monkeypatch.setenv("SHOP_TOKEN", "s3cret")
    async with env.run() as run:
        assert (await say(run, "secret", name="KEY")).text == "s3cret"
        assert (await say(run, "secret", name="MODE")).text == "test"
        assert (await say(run, "secret", name="HUD_API_KEY")).text == "not set"
