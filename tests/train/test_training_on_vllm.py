"""`hud train` with vLLM servers as rollout workers: sampled there, trained here, weights published after every step."""

import asyncio
import contextlib

import pytest
from tests.engine.waiting import until
from tests.integrations.vllm.vllm_stand_in import StandIn
from tests.platform.serving.engine_server import drawn, engine_of, request

from hud import Environment
from hud.cli.main import run
from hud.client import connect, disconnect
from hud.errors import InfrastructureFault, PlatformError, UsageError
from hud.eval import Taskset
from hud.trace import SamplingParams
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud_platform.models.records import ServersConfig
from hud_platform.serving.calls import ForgetModel

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
WORDS = ["red", "green", "blue", "yellow"]
SMALL = {"group": 4, "tasks_per_step": 2, "max_tokens": 8, "max_turns": 1, "lr": 1e-2}
FEW = SamplingParams(max_tokens=4)
PROMPT = [5, 6, 7]

env = Environment("vowels")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


TASKS = Taskset("words", [say(word=word) for word in WORDS])


@pytest.fixture
async def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield folder
    disconnect(folder)


async def make(name="m", **config):
    await connect().post(
        "/v2/models/create", {"name": name, "texts": TEXTS, "sizes": SIZES, "config": config}
    )


@contextlib.contextmanager
def two_servers(**options):
    """Start two servers of the model `m`."""
    folder = platform().registry.model("m").folder
    options = {"max_context": 64, **options}
    with StandIn(folder, **options) as one, StandIn(folder, **options) as two:
        yield [one, two]
        platform().policies.forget(platform().registry.model("m").id)


async def sample_on(*servers, slug="m"):
    urls = [server.url for server in servers]
    await connect().put(
        f"/v2/models/{slug}/servers", {"servers": {"kind": "vllm", "urls": urls} if urls else None}
    )


def platform():
    return connect().embedded.parts


def policy():
    return platform().policies.serving(platform().registry.model("m")).policy


@pytest.mark.slow
@pytest.mark.parametrize("training", ["full", "lora"])
async def test_every_step_samples_with_the_checkpoint_of_the_one_before(home, training):
    await make(training=training, lora_rank=4)
    with two_servers() as servers:
        await sample_on(*servers)
        report = await train(TrainConfig(model="m", steps=2, **SMALL), tasks=TASKS)
        assert report.finished
        for entry in report.history:
            # What the trainer says of the sampled tokens is what the servers said, and they are the newest weights'.
            assert entry["metrics"]["sampler_gap:max"] < 1e-4
            assert entry["metrics"]["policy_lag:max"] == 0
            assert entry["metrics"]["sampled_tokens:sum"] > 0
        first, second = platform().registry.tree.nodes(platform().registry.model("m"))
        assert all(server.requests for server in servers)
        salts = {one.cache_salt for server in servers for one in server.requests}
        assert salts == {"base", first.id}
        assert (await policy().sample(PROMPT, FEW)).version == second.id
        if training == "lora":
            assert all("pause" not in server.calls for server in servers)


@pytest.mark.slow
@pytest.mark.parametrize("training", ["full", "lora"])
async def test_sampling_ahead_swaps_in_flight(home, training):
    await make(training=training, lora_rank=4)
    with two_servers() as servers:
        await sample_on(*servers)
        config = TrainConfig(model="m", steps=3, max_lag=1, **SMALL)
        report = await train(config, tasks=TASKS)
        assert report.finished
        for entry in report.history:
            assert entry["metrics"]["group_lag:max"] <= 1
            if entry["metrics"].get("policy_lag:max") == 0:
                assert entry["metrics"]["sampler_gap:max"] < 1e-4
        assert (await policy().sample(PROMPT, FEW)).version == report.head


@pytest.mark.slow
async def test_a_run_survives_the_death_of_a_server_between_its_steps(home):
    await make()
    with two_servers() as servers:
        await sample_on(*servers)
        config = TrainConfig(model="m", steps=3, **SMALL)
        reporter = Killing(servers[0])
        report = await train(config, tasks=TASKS, reporter=reporter)
        assert report.finished
        assert [entry["metrics"]["failed_rollouts:sum"] for entry in report.history] == [0, 0, 0]
        assert all(entry["metrics"]["sampler_gap:max"] < 1e-4 for entry in report.history)


@pytest.mark.slow
async def test_moving_the_head_moves_the_servers(home):
    await make()
    with two_servers() as servers:
        await sample_on(*servers)
        await train(TrainConfig(model="m", steps=2, **SMALL), tasks=TASKS)
        first, _ = platform().registry.tree.nodes(platform().registry.model("m"))
        await connect().put("/v2/models/m/head", {"checkpoint_id": first.id})
        assert (await policy().sample(PROMPT, FEW)).version == first.id
        await connect().put("/v2/models/m/head", {"checkpoint_id": "base"})
        assert (await policy().sample(PROMPT, FEW)).version is None


@pytest.mark.slow
async def test_weights_of_a_run_before_are_on_servers_that_were_started_again(home):
    await make(training="lora", lora_rank=4)
    with two_servers() as servers:
        await sample_on(*servers)
        report = await train(TrainConfig(model="m", steps=1, **SMALL), tasks=TASKS)
        disconnect(home)
        for server in servers:
            server.kill()
            server.start()
        drawn = await policy().sample(PROMPT, FEW)
        assert drawn.version == report.head
        report = await train(TrainConfig(model="m", steps=2, **SMALL), tasks=TASKS)
        assert report.history[-1]["metrics"]["sampler_gap:max"] < 1e-4


@pytest.mark.slow
async def test_a_model_without_its_servers_says_which_do_not_answer(home):
    await make()
    with two_servers() as servers:
        await sample_on(*servers)
    with pytest.raises((InfrastructureFault, PlatformError), match="cannot be reached"):
        await train(TrainConfig(model="m", steps=1, **SMALL), tasks=TASKS)
    await sample_on()
    report = await train(TrainConfig(model="m", steps=1, **SMALL), tasks=TASKS)
    assert report.finished


@pytest.mark.slow
async def test_servers_change_while_the_model_is_trained(home):
    """A node of samplers that is lost, and another in its place: the run goes on, and its policy stays loaded."""
    await make()
    with two_servers() as (one, two):
        await sample_on(one)
        loaded = policy()
        running = asyncio.create_task(train(TrainConfig(model="m", steps=4, **SMALL), tasks=TASKS))
        await until(lambda: one.requests)
        await sample_on(two)
        one.kill()
        report = await running
        assert report.finished
        assert two.requests
        assert policy() is loaded
        for entry in report.history:
            assert entry["metrics"]["sampler_gap:max"] < 1e-4


async def test_servers_are_given_to_one_model_not_to_its_forks(home):
    await make()
    await connect().put(
        "/v2/models/m/servers", {"servers": {"kind": "vllm", "urls": ["http://127.0.0.1:9/"]}}
    )
    fork = await connect().post("/v2/models/fork", {"source_model_id": "m", "name": "f"})
    assert fork["config"]["servers"] is None
    found = await connect().get("/v2/models/m")
    assert found["config"]["servers"]["urls"] == ["http://127.0.0.1:9"]


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ({"urls": []}, "at least 1"),
        ({"urls": ["ftp://x"]}, "pattern"),
        ({"urls": ["http://key@x"]}, "pattern"),
        ({"urls": ["http://x", "http://x/"]}, "listed twice"),
        ({"urls": ["http://x"], "key_env": "HUD_API_KEY"}, "never sent"),
        ({"urls": ["http://x"], "key_env": "HOME"}, "pattern"),
        ({"urls": ["http://x"], "settings": {"weights": "post"}}, "weights: Input should be"),
        ({"urls": ["http://x"], "settings": {"speed": 1}}, "speed: Extra inputs"),
        ({"urls": ["http://x"], "kind": "none"}, "no sampling servers 'none'; packages register"),
    ],
)
async def test_addresses_that_cannot_be_are_refused(home, servers, said):
    await make()
    with pytest.raises((UsageError, PlatformError), match=said):
        await connect().put("/v2/models/m/servers", {"servers": {"kind": "vllm", **servers}})


async def test_adapters_are_not_sent_as_tensors(home):
    await make(training="lora", lora_rank=4)
    servers = {"urls": ["http://127.0.0.1:9"], "settings": {"weights": "nccl"}}
    with pytest.raises((UsageError, PlatformError), match="leave --weights out"):
        await connect().put("/v2/models/m/servers", {"servers": {"kind": "vllm", **servers}})


async def test_who_may_make_models_may_not_name_servers(home):
    with pytest.raises((UsageError, PlatformError), match="hud models vllm SLUG URL"):
        await make(servers={"kind": "vllm", "urls": ["http://127.0.0.1:9"]})
    await make()
    body = {
        "source_model_id": "m",
        "name": "f",
        "config": {"servers": {"kind": "vllm", "urls": ["http://x"]}},
    }
    with pytest.raises((UsageError, PlatformError), match="hud models vllm SLUG URL"):
        await connect().post("/v2/models/fork", body)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inline", "worker"])
async def test_the_gateway_streams_what_servers_draw(tmp_path, kind):
    async with engine_of(tmp_path, kind) as (platform, model):
        with StandIn(model.folder) as server:
            servers = ServersConfig(kind="vllm", urls=(server.url,))
            model = platform.registry.of(model.team_id).sample_on(model, servers)
            ids, logprobs, top, end = await drawn(
                platform.engine, model, request(8, seed=3, top_logprobs=2)
            )
            assert len(ids) == len(logprobs) == len(top) == 8
            assert (end.finish_reason, end.version) == ("length", None)
            with pytest.raises(UsageError, match="fixed form"):
                await drawn(platform.engine, model, request(8, grammar='start: "a"'))
            await platform.engine.call(model, ForgetModel())


@pytest.mark.slow
def test_the_command_line_gives_and_takes_servers(home, capsys):
    import asyncio

    def hud(line, code=0):
        capsys.readouterr()
        assert run(line.split()) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    asyncio.run(make())
    assert "m is sampled on this platform." in hud("models vllm m")
    told = hud("models vllm m http://127.0.0.1:9 http://127.0.0.1:10")
    assert "m is sampled on http://127.0.0.1:9, http://127.0.0.1:10." in told
    assert "Usage: hud train m TASKS, with TASKS a .py" in told
    assert '"http://127.0.0.1:9"' in hud("models vllm m --json")
    assert '"nccl"' in hud("models vllm m http://127.0.0.1:9 --weights nccl --json")
    sent = hud("models vllm m http://127.0.0.1:9 --weights receiver --receiver-port 8401 --json")
    assert '"receiver_port": 8401' in sent
    assert "--weights goes with servers" in hud("models vllm m --weights nccl", code=2)
    assert "--off goes without servers" in hud("models vllm m http://127.0.0.1:9 --off", code=2)
    assert "m is sampled on this platform." in hud("models vllm m --off")


class Killing:
    """Kills a server when the first step is done."""

    def __init__(self, server):
        self.server = server

    def stepped(self, step, metrics):
        if step == 0:
            self.server.kill()

    def __getattr__(self, name):
        return lambda *arguments: None
