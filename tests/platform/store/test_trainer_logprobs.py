"""The trainer's logprobs of single tokens are kept beside the runs that were trained on, of the newest pass."""

import numpy as np
import orjson
import pytest

from hud.client import connect, disconnect
from hud.errors import StoreError
from hud.inference.models import chat_model
from hud.trace import Continuation, SamplingParams, dashed, new_id, plain
from hud.trace.recording.journal import encode_event
from hud.train import TrainingClient, TrajectoryPayload, TrajectorySample
from hud_platform.store import tables
from hud_platform.store.attempts import Attempt, read_attempt, write_attempts
from hud_platform.store.ingest import ingest
from hud_platform.store.trained_tasks import trained_on
from hud_platform.store.trainer_logprobs import gaps_of, logprobs_between
from hud_platform.training import gradient_accumulation

TEXTS = ["red green blue yellow", "what colour is it?", "the answer is red"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
ASKED = [{"role": "user", "content": "what?"}]


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield folder
    disconnect(folder)


@pytest.fixture
def store(home):
    return connect().embedded.parts.store


async def make(slug="m"):
    body = {"name": slug, "texts": TEXTS, "sizes": SIZES}
    return plain((await connect().post("/v2/models/create", body))["id"])


async def turns_of(count, seed):
    """What the model draws: the ids of each turn extend those of the turn before."""
    model = await chat_model("m")
    samples, messages, continuation = [], list(ASKED), None
    for number in range(count):
        params = SamplingParams(max_tokens=5 + number, temperature=0.7, seed=seed + number)
        done = await model.complete(messages, [], params, continuation=continuation)
        samples.append(done.sample)
        ids = [*done.sample.prompt_token_ids, *done.sample.output_token_ids]
        answer = {"role": "assistant", "content": done.content or ""}
        continuation = Continuation(ids, covered=len(messages) + 1)
        messages = [*messages, answer, {"role": "user", "content": "sure?"}]
    return samples


def put_run(store, samples, *, reward, team=tables.LOCAL_TEAM):
    """Put a run into the store, as a recorder does: its turns are the steps 2, 4, 6, ..."""
    trace_id = new_id()
    row = {"job_id": None, "group_id": None, "attempt": 0, "slug": "it", "model": "m"}
    ended = {**row, "status": "completed", "reward": reward, "step_count": 2 * len(samples)}
    events = [encode_event(b"R", trace_id, 0, orjson.dumps(row))]
    for number, sample in enumerate(samples, 1):
        for place, source in ((2 * number - 1, "user"), (2 * number, "agent")):
            step = {"step_id": place, "source": source, "content": "…"}
            events.append(encode_event(b"S", trace_id, place, orjson.dumps(step)))
        drawn = {
            "extends": None,
            "prompt": sample.prompt_token_ids,
            "output": sample.output_token_ids,
            "logprobs": sample.output_logprobs,
            "checkpoint": sample.checkpoint,
            "swaps": [],
            "temperature": sample.temperature,
        }
        events.append(encode_event(b"T", trace_id, 2 * number, orjson.dumps(drawn)))
    events.append(encode_event(b"E", trace_id, 0, orjson.dumps(ended)))
    ingest(store, b"".join(events), team)
    return trace_id


async def recorded(store, turns=(1, 1), seed=0):
    """Runs on record, of so many turns each, and what was drawn in them."""
    drawn = [await turns_of(count, seed + 10 * number) for number, count in enumerate(turns)]
    traces = [put_run(store, one, reward=float(place)) for place, one in enumerate(drawn)]
    return traces, drawn


def payload(samples, reward, trace_id):
    names = ("prompt_token_ids", "output_token_ids", "output_logprobs", "temperature")
    return TrajectoryPayload(
        samples=[
            TrajectorySample(**{name: getattr(one, name) for name in names}) for one in samples
        ],
        reward=reward,
        trace_id=trace_id,
    )


async def settled(model="m"):
    """Wait until the session has written what it had to: its calls come one after another."""
    await connect().post(f"/v1/models/{await TrainingClient(model).model_id()}/train/open", {})


def kept(store, trace_id):
    return logprobs_between(store, trace_id, 0, 100)


async def test_at_unchanged_weights_trainer_and_sampler_agree_on_every_token_of_every_turn(store):
    model = await make()
    traces, drawn = await recorded(store, turns=(3, 1))
    earlier, later = drawn[0][0], drawn[0][1]
    before = [*earlier.prompt_token_ids, *earlier.output_token_ids]
    assert later.prompt_token_ids[: len(before)] == before
    result = await TrainingClient("m").forward_backward(traces)
    assert result.num_datums == 2  # Three turns that extend each other are one.
    await settled()
    assert list(kept(store, traces[0])) == [2, 4, 6]
    for trace_id, samples in zip(traces, drawn, strict=True):
        for sample, mine in zip(samples, kept(store, trace_id).values(), strict=True):
            np.testing.assert_allclose(mine, sample.output_logprobs, atol=1e-4)
        weights, gaps = gaps_of(store, trace_id)
        assert (weights.model_id, weights.step, weights.checkpoint) == (model, 0, None)
        assert len(gaps) == sum(len(sample.output_token_ids) for sample in samples)
        assert gaps.max() < 1e-4
    assert result.metrics["sampler_gap:max"] < 1e-4


async def test_turns_that_do_not_extend_each_other_are_matched_too(store):
    await make()
    first, second = await turns_of(1, 0), await turns_of(1, 0)
    assert (
        first[0].output_token_ids == second[0].output_token_ids
    )  # Only their order tells them apart.
    other = await turns_of(1, 5)
    traces = [put_run(store, [*first, *other, *second], reward=1.0)]
    traces.append(put_run(store, await turns_of(1, 9), reward=0.0))
    assert (await TrainingClient("m").forward_backward(traces)).num_datums == 4
    await settled()
    assert list(kept(store, traces[0])) == [2, 4, 6]
    assert gaps_of(store, traces[0])[1].max() < 1e-4


async def test_the_newest_pass_wins_and_says_at_which_step_it_was(store):
    await make()
    traces, _ = await recorded(store, turns=(2, 1))
    trainer = TrainingClient("m")
    made = await trainer.step(traces, learning_rate=5e-2)
    before = gaps_of(store, traces[0])
    await trainer.forward_backward(traces)
    await settled()
    weights, gaps = gaps_of(store, traces[0])
    assert (before[0].step, weights.step) == (0, 1)
    assert weights.checkpoint == made.checkpoint_id
    assert gaps.max() > 1e-2 > before[1].max()


async def test_runs_sent_as_payloads_are_found_by_their_trace_id(store):
    await make()
    traces, drawn = await recorded(store)
    sent = [payload(one, float(place), dashed(traces[place])) for place, one in enumerate(drawn)]
    await TrainingClient("m").forward_backward(sent)
    await settled()
    assert all(gaps_of(store, trace_id)[1].max() < 1e-4 for trace_id in traces)


async def test_a_custom_loss_leaves_the_logprobs_of_its_forward(store):
    await make()
    traces, _ = await recorded(store, turns=(2, 2))
    trainer = TrainingClient("m")
    found = await trainer.forward(traces)
    await settled()
    for trace_id, datum in zip(traces, found.data, strict=True):
        said = [one for one, kept_ in zip(datum.logprobs, datum.mask, strict=True) if kept_]
        mine = [value for row in kept(store, trace_id).values() for value in row]
        np.testing.assert_allclose(mine, said, rtol=1e-6)


async def test_tokens_that_were_not_trained_on_have_no_logprob(store):
    await make()
    traces, drawn = await recorded(store)
    drawn[0][0].output_logprobs[1] = None
    sent = [payload(one, float(place), traces[place]) for place, one in enumerate(drawn)]
    await TrainingClient("m").forward_backward(sent)
    await settled()
    assert np.flatnonzero(np.isnan(kept(store, traces[0])[2])).tolist() == [1]
    assert len(gaps_of(store, traces[0])[1]) == len(drawn[0][0].output_token_ids) - 1


async def test_nothing_is_kept_of_runs_that_are_unknown_others_or_not_what_is_on_record(store):
    await make()
    drawn = [await turns_of(1, seed) for seed in (0, 5, 7, 9)]
    theirs = put_run(store, drawn[0], reward=0.0, team=new_id())
    mine = put_run(store, drawn[1], reward=0.0)
    sent = [
        payload(drawn[0], 0.0, theirs),
        payload(drawn[2], 1.0, mine),  # Other tokens than this run's.
        payload(drawn[2], 0.5, new_id()),
        payload(drawn[3], 0.2, "a name of one's own"),
        payload(drawn[3], 0.3, None),
    ]
    assert (await TrainingClient("m").forward_backward(sent)).num_datums == 5
    await settled()
    with store.read() as connection:
        assert connection.execute(tables.trainer_logprobs.select()).all() == []


async def test_runs_from_which_two_models_learned_are_trained_on_by_both(store):
    await make()
    await make("other")
    await make("third")
    traces, _ = await recorded(store)
    for model in ("m", "other"):
        await TrainingClient(model).forward_backward(traces)
        await settled(model)
    for model, slugs in (("m", {"it"}), ("other", {"it"}), ("third", set())):
        assert trained_on(store, tables.LOCAL_TEAM, [model], traces) == slugs


async def test_a_run_that_is_played_again_loses_what_was_computed_of_it(store):
    await make()
    traces, _ = await recorded(store)
    await TrainingClient("m").forward_backward(traces)
    await settled()
    assert kept(store, traces[0])
    rows = read_attempt(store, Attempt(tables.LOCAL_TEAM, traces[0]), b"", again=True)
    with store.begin() as connection:
        write_attempts(connection, [rows])
    assert (kept(store, traces[0]), gaps_of(store, traces[0])) == ({}, None)
    assert kept(store, traces[1])


async def test_a_store_that_cannot_be_written_does_not_stop_training(store, monkeypatch, caplog):
    await make()
    traces, _ = await recorded(store)

    def full(*_):
        raise StoreError("The disk is full.")

    monkeypatch.setattr(gradient_accumulation, "record_pass", full)
    trainer = TrainingClient("m")
    await trainer.forward_backward(traces)
    assert (await trainer.optim_step(learning_rate=1e-3)).step == 1
    assert "The disk is full." in caplog.text
