"""Texts of training whose task no recorded run names are compared with the prompts of a promotion's tasks."""

import numpy as np
import orjson
import pytest

from hud.client import connect, disconnect
from hud.client.contributor import Contributor
from hud.learning.datum_calls import DatumColumns, DatumPassRequest, StepRequest, packed
from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud.train import TrainingClient, TrajectoryPayload, TrajectorySample
from hud_platform.store import tables
from hud_platform.store.ingest import ingest
from hud_platform.store.trained_prompts import prompts_trained_on

TEXTS = ["red green blue yellow", "say cyan", "say mint", "the answer is red"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 96}
WORDS = ("cyan", "mint", "rust")


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield connect().embedded.parts
    disconnect(tmp_path)


def put_run(store, word, *, named=True, source=None):
    """Record a run of the task `say word`."""
    trace_id = new_id()
    task = {"env": "letters", "id": "say", "args": {"word": word}} if named else None
    row = {"job_id": None, "group_id": None, "attempt": 0, "slug": f"say-{word}", "task": task}
    row |= {"source": source} if source else {}
    step = {
        "step_id": 1,
        "source": "user",
        "messages": [{"role": "user", "content": f"say {word}"}],
    }
    ended = {**row, "model": "m", "status": "completed", "reward": 1.0, "step_count": 1}
    events = [
        encode_event(kind, trace_id, place, orjson.dumps(data))
        for kind, place, data in ((b"R", 0, row), (b"S", 1, step), (b"E", 0, ended))
    ]
    assert ingest(store, b"".join(events), tables.LOCAL_TEAM).damaged == []
    return trace_id


@pytest.fixture
async def model(parts):
    await connect().post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    return parts.registry.model("m").id


def tokens_of(parts, word):
    """Token ids of a prompt, and of an answer to it."""
    form = parts.policies.serving(parts.registry.model("m")).policy.chat
    prompt = form.render([{"role": "user", "content": f"say {word}"}], [])
    return [*prompt], form.tokenizer.encode(word).ids


def payload_of_word(parts, word, trace_id=None):
    prompt, output = tokens_of(parts, word)
    sample = TrajectorySample(prompt_token_ids=prompt, output_token_ids=output)
    return TrajectoryPayload(samples=[sample], reward=1.0, trace_id=trace_id)


def trained(parts, model):
    played = [put_run(parts.store, word) for word in WORDS]
    return prompts_trained_on(parts.store, tables.LOCAL_TEAM, [model], played)


async def learn(*payloads):
    trainer = TrainingClient("m")
    await trainer.forward_backward([*payloads], loss_fn="cross_entropy")
    await trainer.optim_step(learning_rate=1e-3)


async def test_a_conversation_without_a_run_counts_as_trained(parts, model):
    await learn(payload_of_word(parts, "cyan"))
    assert trained(parts, model) == {"say-cyan"}


@pytest.mark.parametrize(("named", "source"), [(False, None), (True, "openai"), (False, "openai")])
async def test_a_run_whose_task_is_not_known_here_counts_by_its_prompt(parts, model, named, source):
    trace_id = put_run(parts.store, "mint", named=named, source=source)
    await learn(payload_of_word(parts, "mint", trace_id))
    assert trained(parts, model) == {"say-mint"}


async def test_a_run_that_names_its_task_does_not_count_by_its_prompt(parts, model):
    """Tasks with one prompt may differ in their hidden arguments."""
    await learn(payload_of_word(parts, "mint", put_run(parts.store, "mint")))
    assert trained(parts, model) == set()


async def test_tokens_of_another_prompt_than_their_run_count(parts, model):
    await learn(payload_of_word(parts, "mint", put_run(parts.store, "green")))
    assert trained(parts, model) == {"say-mint"}


async def test_tokens_of_a_run_that_is_recorded_later_count(parts, model):
    await learn(payload_of_word(parts, "mint", new_id()))
    assert trained(parts, model) == {"say-mint"}


async def test_a_custom_loss_counts_when_its_gradient_is_applied(parts, model):
    trainer = TrainingClient("m")
    sent = [payload_of_word(parts, word).model_copy(deep=True) for word in ("cyan", "mint")]
    for payload in sent:
        payload.samples[0].output_logprobs = [-1.0] * len(payload.samples[0].output_token_ids)
    await trainer.forward_backward_custom(
        sent, lambda data, logprobs: (sum(row.sum() for row in logprobs), {})
    )
    assert trained(parts, model) == set()
    await trainer.optim_step(learning_rate=1e-3)
    assert trained(parts, model) == {"say-cyan", "say-mint"}


async def test_a_gradient_that_is_discarded_trains_on_nothing(parts, model):
    trainer = TrainingClient("m")
    await trainer.forward_backward([payload_of_word(parts, "rust")], loss_fn="cross_entropy")
    await connect().post(f"/v1/models/{model}/train/discard", {})
    await learn(payload_of_word(parts, "cyan"))
    assert trained(parts, model) == {"say-cyan"}


@pytest.mark.parametrize("weighted", ["answer", "all"])
async def test_single_datums_count_whatever_their_weights(parts, model, weighted):
    """As Tinker's clients send them."""
    prompt, output = tokens_of(parts, "mint")
    ids = np.array([*prompt, *output], np.int64)
    weights = np.ones(len(ids) - 1, np.float32)
    if weighted == "answer":
        weights[: len(prompt) - 1] = 0
    columns = DatumColumns(
        tokens=packed(ids[:-1], np.int64),
        targets=packed(ids[1:], np.int64),
        weights=packed(weights, np.float32),
    )
    client = Contributor("a" * 32, "a test")
    record, engine = parts.registry.model("m"), parts.engine
    await engine.call(record, DatumPassRequest(datums=[columns], loss_fn="cross_entropy"), client)
    step = StepRequest(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0)
    await engine.call(record, step, client)
    assert trained(parts, model) == {"say-mint"}
