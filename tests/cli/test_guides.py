"""Commands of HUD's published guides, as people paste them: each runs, and does what the guide says it does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest
from tests.agents.servers import anthropic, gemini, openai_responses
from tests.agents.servers.loopback import beside
from tests.docs.stage import TASKS
from tests.fleet.live_server import LiveServer
from tests.warm_hud import WarmHud

PROVIDERS = {
    "claude": (anthropic.AnthropicMessages, [anthropic.say("a door")]),
    "openai": (openai_responses.OpenAIResponses, [openai_responses.say("a door")]),
    "gemini": (gemini.GeminiContent, [gemini.say("a door")]),
}
NEEDS = {"browser": "chromium", "workspace": "bwrap"}
NOTHING = "async def agent(run):\n    return ''\n"


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    with WarmHud(tmp_path_factory.mktemp("warm")) as hud:
        yield hud


@pytest.fixture
def hud(warm, tmp_path):
    """Run a command line in a folder of its own, with tasks.py in it; returns what it printed."""
    (tmp_path / "tasks.py").write_text(TASKS % (["red", "green", "blue"],))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    variables |= {"HUD_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}

    def run(line, code=0, **more):
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=variables
            | {"PATH": f"{warm.program.parent}:{os.environ['PATH']}"}
            | {name: str(value) for name, value in more.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == code, f"{line}\n{done.stdout}"
        return done.stdout

    return run


# -- hud init -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "preset",
    [
        "tools",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("blank", "browser", "workspace", "mcp", "subagents")
        ),
    ],
)
def test_a_preset_runs_right_after_init_and_doing_nothing_earns_nothing(hud, tmp_path, preset):
    if shutil.which(NEEDS.get(preset, "bash")) is None:
        pytest.skip(f"there is no {NEEDS[preset]} here: scripts/setup-worlds")
    said = hud(f"hud init my-env --preset {preset}")
    assert (tmp_path / "my-env" / "env.py").exists()
    next_command = said.splitlines()[-1].strip()
    assert next_command == "hud eval my-env/tasks.py my-env/agent.py --all"
    assert re.search(r"mean reward +1\.000", hud(next_command))
    held_out = next_command.replace("tasks.py", "held_out.py")
    assert re.search(r"mean reward +1\.000", hud(held_out))
    (tmp_path / "nothing.py").write_text(NOTHING)
    assert re.search(r"mean reward +0\.000", hud("hud eval my-env/tasks.py nothing.py --all"))
    for word in ("NAME", "TITLE", "FOLDER"):
        assert not re.search(rf"\b{word}\b", (tmp_path / "my-env" / "env.py").read_text())


def test_init_writes_nothing_over_and_nothing_for_show(hud, tmp_path):
    hud("hud init my-env --dry-run -p blank")
    assert not (tmp_path / "my-env").exists()
    hud("hud init && hud init my-env --dir envs -t blank")
    assert (tmp_path / "my-environment" / "tasks.py").exists()
    assert (tmp_path / "envs" / "my-env" / "tasks.py").exists()
    assert "exist already; --force replaces them" in hud("hud init my-env --dir envs", code=2)
    hud("hud init my-env --dir envs --force")
    assert "'blank', 'tools'" in hud("hud init other --preset robot", code=2)


@pytest.mark.slow
def test_an_environment_in_a_folder_with_a_space_prints_a_command_that_runs(hud, tmp_path):
    (tmp_path / "my work").mkdir()
    said = hud("hud init my-env --dir 'my work'")
    assert re.search(r"mean reward +1\.000", hud(said.splitlines()[-1].strip()))


# -- hud eval -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "claude",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in PROVIDERS if kind != "claude"),
    ],
)
@pytest.mark.parametrize("named", ["kind", pytest.param("model", marks=pytest.mark.slow)])
def test_gateway_asks_the_gateway_even_where_a_key_is_set(hud, kind, named):
    provider, turn = PROVIDERS[kind]
    models = {"claude": "claude-sonnet-4-6", "openai": "gpt-5.6", "gemini": "gemini-3.5-flash"}
    asked = kind if named == "kind" else models[kind]
    module = {"claude": anthropic, "openai": openai_responses, "gemini": gemini}[kind]
    own_key = {"ANTHROPIC_API_KEY": "own", "OPENAI_API_KEY": "own", "GEMINI_API_KEY": "own"}
    with beside(provider(turn)) as gateway, beside(provider()) as elsewhere:
        places = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GEMINI_BASE_URL")
        said = hud(
            f"hud eval tasks.py {asked} --gateway --json",
            # The stand-in takes OpenAI's dialect under /v1 alone; the gateway takes it with and without.
            HUD_GATEWAY_URL=gateway.url + "/v1" * (kind == "openai"),
            HUD_API_KEY=module.KEY,
            **own_key,
            **dict.fromkeys(places, elsewhere.url),
        )
    assert json.loads(said)["reward"] == 1.0
    assert (len(gateway.requests), gateway.refused, elsewhere.requests) == (1, [], [])


@pytest.mark.slow
def test_gateway_without_a_gateway_says_what_to_set(hud):
    for agent in ("claude", "gpt-5.6", "openai_compatible --model x"):
        said = hud(f"hud eval tasks.py {agent} -g", code=2, OPENAI_API_KEY="own")
        assert "HUD_API_URL" in said
    assert "takes no" in hud("hud init e && hud eval tasks.py e/agent.py -g", code=2)


@pytest.mark.slow
def test_full_plays_every_task_and_answers_questions(hud):
    turns = [[anthropic.say("Shall I open it?")], [anthropic.say("a door")]] * 3
    with beside(anthropic.AnthropicMessages(*turns)) as server:
        said = hud(
            "hud eval tasks.py claude --full --max-concurrent 1 --json",
            ANTHROPIC_API_KEY=anthropic.KEY,
            ANTHROPIC_BASE_URL=server.url,
        )
    assert [run["reward"] for run in json.loads(said)["runs"]] == [1.0] * 3
    assert "Decide by yourself" in json.dumps(server.requests[1]["messages"])


@pytest.mark.slow
def test_full_takes_scripts_and_their_own_number_of_steps(hud):
    assert re.search(
        r"mean reward +1\.000", hud("hud init e && hud eval e/tasks.py e/agent.py --full")
    )
    assert "100" in hud("hud eval --help")


@pytest.mark.slow
def test_options_of_the_guides_are_taken(hud):
    hud("hud init my-env")
    line = "hud eval my-env/tasks.py my-env/agent.py"
    for options in (
        "--full --group 3",
        "--all --group-size 2 --max-concurrent 2 -v",
        "--task-ids 0,2 -y",
        "--max-steps 30 -vv",
        "--runtime local",
    ):
        assert re.search(r"mean reward +1\.000", hud(f"{line} {options}")), options
    assert re.search(r"mean reward +1\.000", hud("cd my-env && hud eval . agent.py --all"))


# -- models, jobs -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_models_head_prints_the_active_checkpoint_and_its_statistics(hud):
    hud(
        "hud models create m --tasks tasks.py --hidden 32 --layers 1 --vocab-size 300 --max-context 96"
    )
    assert "m serves the weights it began with." in hud("hud models head m")
    hud(
        "hud train m tasks.py --steps 1 --group 4 --tasks-per-step 2 --max-tokens 8 --max-turns 2 --lr 0.001"
    )
    found = json.loads(hud("hud models head m --json"))["head"]
    said = hud("hud models head m")
    assert said.startswith(f"m serves {found['name']} ({found['id']}).")
    rows = dict(re.findall(r"^  (\S.*?)  +(\S.*?)\s*$", said, re.MULTILINE))
    assert rows["from"] == "base"
    assert rows["reward"] == f"{found['mean_reward']:.3f}"
    assert rows["learning rate"] == "0.001"
    assert rows["learned from"].endswith(f"{found['num_tokens']:,} tokens")
    assert float(rows["gradient norm"]) > 0
    hud("hud models list; hud models checkpoints m; hud models fork m --name n")
    hud(f"hud models head m --set base && hud models head m --set {found['id']}")
    hud("hud jobs; hud jobs -n 50; hud jobs --json; hud version")
    run = json.loads(hud('hud jobs --json | jq -r ".[0].id" | xargs hud jobs --json'))["traces"][0]
    assert run["id"] in hud(f"hud trace {run['id']}")
    assert json.loads(hud(f"hud trace {run['id']} --json"))


# -- the platform -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with beside(_always(anthropic.AnthropicMessages, [anthropic.say("a door")])) as provider:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANTHROPIC_API_KEY", anthropic.KEY)
            patch.setenv("ANTHROPIC_BASE_URL", provider.url)
            made = LiveServer(tmp_path_factory.mktemp("up") / "home")
            made.start()
        yield made
        made.stop()


def _always(kind, turn):
    class Always(kind):
        async def handle(self, request):
            self.script = [turn]
            return await super().handle(request)

    return Always()


@pytest.mark.slow
def test_remote_plays_with_the_providers_key_of_the_platform(hud, server):
    place = {"HUD_API_URL": server.url, "HUD_API_KEY": server.key}
    hud("hud deploy . --yes", **place)
    hud("hud sync tasks my-taskset . --yes", **place)
    said = hud("hud eval my-taskset claude --full --remote", **place)
    assert re.search(r"mean reward +1\.000", said)
    said = hud("hud eval tasks.py claude --gateway --remote", **place)
    assert re.search(r"mean reward +1\.000", said)
    assert re.search(r"mean reward +1\.000", hud("hud eval tasks.py claude --gateway", **place))
