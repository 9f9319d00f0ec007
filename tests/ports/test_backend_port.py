"""The port `Backend`: a training service that joins by an entry point, and trains models by `hud train --backend NAME`."""

import json
import subprocess
import sys

import pytest
from tests.ports.decoders import packed_logprobs
from tests.strangers import installer
from tests.train.test_distillation import joined

from hud import Environment, Taskset, TrainingClient
from hud.client import connect, disconnect
from hud.engine.backends.registered import backend_named
from hud.engine.pretrained import load_decoder
from hud.engine.tiny_model import create_tiny
from hud.errors import NotFoundError, UsageError
from hud.learning.datums import sampled_turns
from hud.train.config import TrainConfig, make_config
from hud.train.loop import train

CODE = '''
from pathlib import Path

from hud.errors import NotFoundError
from hud.engine.backends.backend import Backend, Connection, OfferedModel, OpenModel


class Shelf(Backend):
    """Models in folders of this machine, as if it were another one."""

    def settings(self, base_model, environment):
        return {"folder": str(Path(environment["SHELF"]) / base_model)}

    def refusal(self, config):
        return "temperature other than 1" if config.temperature != 1 else None

    def offered(self, settings, secret):
        folder = Path(settings["folder"])
        if not folder.is_dir():
            raise NotFoundError(f"The shelf has no {folder.name!r}.")
        return OfferedModel(folder.name, str(folder), lora_rank=None)

    def connect(self):
        return Shelves()


class Shelves(Connection):
    def open(self, model):
        return Opened(model)

    def close(self):
        pass


class Opened(OpenModel):
    def __init__(self, model):
        from hud.engine.policy import Policy

        self._base = Path(model.settings["folder"])
        self.policy = Policy.load(self._base)

    def go_to(self, saved):
        from hud.engine.pretrained import load_weights

        load_weights(self.policy.decoder, saved or self._base)

    def open_trainer(self):
        from hud.engine.learn.local_trainer import LocalTrainer

        return LocalTrainer(self.policy.decoder)

    def score(self, datums, top):
        from hud.engine.learn.scoring import scored_by

        return scored_by(self.policy.decoder, datums, top)


plug = Shelf()
'''
env = Environment("colours")


@env.template()
async def colour(name: str):
    answer = yield f"Say {name}."
    yield sum(letter in "aeiou" for letter in answer) / max(len(answer), 1)


TASKS = Taskset("colours", [colour(name=name) for name in ("red", "blue")])
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder with the base model `small`, and the stranger's backend of it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    installer(outside, monkeypatch)("hud.trainers", "shelf", CODE)
    create_tiny(outside / "small", ["say red", "say blue"] * 5, **SIZES)
    monkeypatch.setenv("SHELF", str(outside))
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    yield outside
    disconnect(tmp_path / "home")


def configured(**settings):
    return make_config(
        {
            "model": "small",
            "backend": "shelf",
            "steps": 2,
            "group": 8,
            "tasks_per_step": 2,
            "max_tokens": 8,
            "max_turns": 1,
            **settings,
        }
    )


@pytest.mark.slow
async def test_a_stranger_s_backend_trains_and_goes_on_from_its_checkpoint(shelf, tmp_path):
    first = await train(configured(steps=1), tasks=TASKS)
    assert first.finished
    disconnect(tmp_path / "home")
    second = await train(configured(steps=2), tasks=TASKS)
    assert (second.first_step, second.finished) == (1, True)
    client = connect()
    nodes = await client.get("/v2/models/small/checkpoints")
    assert [node["step"] for node in nodes] == [1, 2]
    row = await client.get("/v2/models/small")
    assert (row["kind"], row["config"]["training"]) == ("shelf", "full")
    assert row["config"]["backend"] == {
        "name": "shelf",
        "settings": {"folder": str(shelf / "small")},
    }
    trainer = TrainingClient("small", backend="shelf")
    await trainer.set_head("base")
    job = await TASKS.run(await playing("small"), group=2)
    assert job.reward is not None


async def playing(slug):
    from hud.agents.tool_loop import ToolLoopAgent
    from hud.inference.models import chat_model
    from hud.trace import SamplingParams

    return ToolLoopAgent(await chat_model(slug), params=SamplingParams(max_tokens=4))


async def test_what_needs_weights_here_is_refused_with_the_backend_s_name(shelf):
    client = connect()
    assert await TrainingClient("small", backend="shelf").model_id()
    row = await client.get("/v2/models/small")
    fork = {"source_model_id": row["id"], "name": "copy"}
    servers = {"servers": {"kind": "vllm", "urls": ["http://127.0.0.1:9"]}}
    with pytest.raises(UsageError, match="trained by the backend 'shelf'.*no weights here"):
        await client.post("/v2/models/fork", fork)
    with pytest.raises(UsageError, match="sampled by the backend 'shelf'"):
        await client.put(f"/v2/models/{row['id']}/servers", servers)
    stolen = {"name": "x", "texts": ["a b"], "config": {"backend": row["config"]["backend"]}}
    with pytest.raises(UsageError, match="hud train BASE_MODEL TASKS --backend shelf"):
        await client.post("/v2/models/create", stolen)


async def test_a_model_of_a_backend_teaches_one_of_the_platform(shelf):
    """The loss is the KL of both models' distributions, of the teacher's 20 likeliest tokens and all others as one."""
    sizes = {**SIZES, "hidden": 16}
    texts = ["say red", "say blue"] * 5
    await connect().post("/v2/models/create", {"name": "student", "texts": texts, "sizes": sizes})
    await TrainingClient("small", backend="shelf").model_id()
    job = await TASKS.run(await playing("student"), group=2)
    base = connect().embedded.parts.registry.model("student").folder
    student, teacher = (load_decoder(folder).double() for folder in (base, shelf / "small"))
    gap = 0.0
    for sample in (sample for run in job.runs for sample in sampled_turns(run.trace)):
        tokens = [*sample.prompt_token_ids, *sample.output_token_ids]
        places = slice(len(sample.prompt_token_ids) - 1, len(tokens) - 1)
        own, other = (
            packed_logprobs(decoder, tokens)[places].log_softmax(-1).detach()
            for decoder in (student, teacher)
        )
        likeliest = other.topk(20).indices
        mine, theirs = joined(own, likeliest), joined(other, likeliest)
        gap += (mine.exp() * (mine - theirs)).sum().item()
    result = await TrainingClient("student").forward_backward(
        job.runs,
        teacher="small",
        reward_scale=0.0,
        loss_fn_config={"kl_coef": 1.0, "kl_estimator": 0},
    )
    assert gap > 0.01
    assert result.metrics["loss:sum"] == pytest.approx(gap, rel=1e-3)


async def test_a_model_of_the_platform_and_an_unknown_base_are_refused(shelf):
    await connect().post("/v2/models/create", {"name": "here", "texts": ["a b"], "sizes": SIZES})
    with pytest.raises(UsageError, match="'here' are on this platform, so backend 'shelf'"):
        await train(configured(model="here"), tasks=TASKS)
    with pytest.raises(UsageError, match="shelf has no 'large'"):
        await train(configured(model="large"), tasks=TASKS)


def test_settings_that_a_backend_cannot_follow_and_unknown_backends_are_named(shelf):
    with pytest.raises(
        UsageError, match="backend='shelf' cannot be used with temperature other than 1"
    ):
        configured(temperature=0.5)
    with pytest.raises(
        UsageError, match=r"no training backend 'shelve'; there are platform, tinker, shelf\.$"
    ):
        configured(backend="shelve")
    assert TrainConfig(model="m").backend == "platform"


@pytest.mark.parametrize("name", ["tinker", "shelf"])
def test_every_backend_stores_plain_settings_and_refuses_those_of_others(shelf, name):
    backend = backend_named(name)
    settings = backend.settings("small", {"SHELF": str(shelf)})
    assert json.loads(json.dumps(settings)) == settings
    assert backend.refusal(TrainConfig(model="small")) is None
    with pytest.raises((UsageError, NotFoundError)):
        backend.offered({**settings, "folder": str(shelf / "none"), "base_model": 7}, {}.get)
    backend.connect().close()


@pytest.mark.slow
def test_no_backend_of_this_distribution_loads_torch():
    code = (
        "import sys\n"
        "from hud.engine.backends.registered import GROUP, backend_named\n"
        "from hud.plugs import plugs\n"
        "for name in plugs(GROUP): backend_named(name)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
