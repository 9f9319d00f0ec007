"""Training sessions: what is accumulated is applied once, saved whole, and served from then on."""

import errno

import numpy as np
import pytest
from safetensors.torch import load_file

from hud.client import connect, disconnect
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.step_meter import TRANSIENT
from hud.engine.models import tensor_file
from hud.engine.sample.cache_budget import CacheBudget
from hud.errors import ConflictError, NotFoundError, StoreError, UsageError
from hud.inference.models import chat_model
from hud.trace import SamplingParams, plain
from hud.train import AdvantageOptions, TrainingClient, TrajectoryPayload, TrajectorySample
from hud_platform.models.checkpoint_files import verify_checkpoint
from hud_platform.models.model_lease import Leases
from hud_platform.store import Store

TEXTS = ["red green blue yellow", "what colour is it?", "the answer is red"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield folder
    disconnect(folder)


@pytest.fixture
def platform(home):
    return connect().embedded.parts


async def make(slug="m", **config):
    body = {"name": slug, "texts": TEXTS, "sizes": SIZES, "config": config or None}
    return await connect().post("/v2/models/create", body)


async def sampled(rewards, slug="m", seed=0):
    """Trajectories that the model itself sampled, one for each reward."""
    model = await chat_model(slug)
    payloads = []
    for place, reward in enumerate(rewards):
        params = SamplingParams(max_tokens=6, seed=seed + place)
        done = await model.complete([{"role": "user", "content": "what?"}], [], params)
        sample = done.sample
        payloads.append(
            TrajectoryPayload(
                samples=[
                    TrajectorySample(
                        prompt_token_ids=sample.prompt_token_ids,
                        output_token_ids=sample.output_token_ids,
                        output_logprobs=sample.output_logprobs,
                        checkpoint=sample.checkpoint,
                    )
                ],
                reward=reward,
            )
        )
    return payloads


def weights_of(platform, slug="m"):
    policy = platform.policies.serving(platform.registry.model(slug)).policy
    return {name: p.detach().clone() for name, p in policy.decoder.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(bool((one[n] == other[n]).all()) for n in one)


async def test_a_step_saves_a_checkpoint_and_moves_the_head(home, platform):
    await make()
    trainer = TrainingClient("m")
    result = await trainer.forward_backward(await sampled([0.0, 1.0]))
    assert result.num_datums == 2
    assert await trainer.head() is None
    made = await trainer.optim_step(learning_rate=1e-2)
    head = await trainer.head()
    assert (head.id, made.step, made.model) == (made.checkpoint_id, 1, "m")
    assert head.mean_reward == 0.5
    assert head.loss_fn == "importance_sampling"
    saved = load_file(f"{made.sampler_path}/model.safetensors")
    assert same(saved, weights_of(platform))
    assert (await sampled([1.0]))[0].samples[0].checkpoint == made.checkpoint_id


class Gpu:
    """A device of 400 KiB for one sampler's cache and its training."""

    lazy = False
    sampler = None

    def free(self):
        return (400 << 10) - (self.sampler.cache_bytes if self.sampler else 0)


async def test_the_cache_leaves_a_training_what_its_first_step_took(home, platform, monkeypatch):
    gpu = Gpu()
    budget = CacheBudget(gpu)
    for module in ("hud.engine.sample.sampler", "hud_platform.models.serving_policies"):
        monkeypatch.setattr(f"{module}.budget_of", lambda device: budget)
    step = LocalTrainer.optim_step
    peak = {TRANSIENT: float(200 << 10)}
    monkeypatch.setattr(LocalTrainer, "optim_step", lambda *a, **b: step(*a, **b) | peak)
    await make()
    batch = await sampled([1.0, 0.0])
    gpu.sampler = platform.policies.loaded(await TrainingClient("m").model_id()).policy.sampler
    whole = gpu.sampler.cache_bytes
    assert whole > 0.85 * (400 << 10)
    client = TrainingClient("m")
    await client.forward_backward(batch)
    assert gpu.sampler.cache_bytes <= whole  # The plan is no measurement.
    await client.optim_step(learning_rate=1e-3)
    assert 0.85 * (200 << 10) <= gpu.sampler.cache_bytes <= 200 << 10
    assert len(await sampled([1.0])) == 1


async def test_answers_hold_exactly_the_keys_of_the_wire(home):
    model = await make()
    prefix = f"/v1/models/{model['id']}/train"
    inputs = [one.model_dump(exclude_none=True) for one in await sampled([0.0, 1.0])]
    client = connect()
    answer = await client.post(f"{prefix}/forward", {"inputs": inputs, "group_size": 2})
    assert answer.keys() == {"forward_id", "data"}
    keys = {"reward", "traj_idx", "group_idx", "logprobs", "sampling_logprobs", "mask"}
    assert answer["data"][0].keys() == keys
    weights = [[0.0 if not m else 0.1 for m in row["mask"]] for row in answer["data"]]
    body = {"forward_id": answer["forward_id"], "weights": weights, "metrics": {"mine": 2.0}}
    answer = await client.post(f"{prefix}/backward", body)
    assert answer.keys() == {"metrics", "num_datums"}
    assert answer["metrics"]["mine"] == 2.0
    answer = await client.post(f"{prefix}/forward-backward", {"inputs": inputs})
    assert answer.keys() == {"metrics", "num_datums"}
    answer = await client.post(f"{prefix}/optim-step", {"learning_rate": 1e-3})
    assert answer.keys() == {"step", "checkpoint_id", "sampler_path", "state_path", "model"}
    assert (await client.get(f"{prefix}/losses")).keys() == {"losses"}
    with pytest.raises(UsageError, match="surprise"):
        await client.post(f"{prefix}/optim-step", {"learning_rate": 1e-3, "surprise": 1})


async def test_nothing_accumulated_is_a_conflict(home):
    await make()
    trainer = TrainingClient("m")
    with pytest.raises(ConflictError, match="Nothing was accumulated"):
        await trainer.optim_step(learning_rate=1e-3)
    await trainer.step(await sampled([0.0, 1.0]), learning_rate=1e-3)
    with pytest.raises(ConflictError, match="Nothing was accumulated"):
        await trainer.optim_step(learning_rate=1e-3)
    assert len(await trainer.checkpoints()) == 1


async def test_a_repeated_step_with_its_key_is_not_taken_twice(home, platform):
    await make()
    trainer = TrainingClient("m")
    await trainer.forward_backward(await sampled([0.0, 1.0]))
    first = await trainer.optim_step(learning_rate=1e-2, idempotency_key="k")
    assert await trainer.optim_step(learning_rate=1e-2, idempotency_key="k") == first
    # Also by a session that never heard the first request.
    await platform.sessions.close(platform.registry.model("m").id)
    assert await trainer.optim_step(learning_rate=1e-2, idempotency_key="k") == first
    assert len(await trainer.checkpoints()) == 1


async def test_an_idempotency_key_belongs_to_one_request(home, platform):
    await make()
    trainer, batch = TrainingClient("m"), await sampled([0.0, 1.0])
    first = await trainer.forward_backward(batch, idempotency_key="p")
    assert await trainer.forward_backward(batch, idempotency_key="p") == first
    with pytest.raises(ConflictError, match="'p' was sent before"):
        await trainer.forward_backward(batch, reward_scale=2.0, idempotency_key="p")
    step = await trainer.optim_step(learning_rate=1e-2, idempotency_key="k")
    with pytest.raises(ConflictError, match="'k' was sent before"):
        await trainer.optim_step(learning_rate=1e-3, idempotency_key="k")
    await platform.sessions.close(platform.registry.model("m").id)
    with pytest.raises(ConflictError, match="'k' was sent before"):
        await trainer.optim_step(learning_rate=1e-3, idempotency_key="k")
    again = await trainer.optim_step(learning_rate=1e-2, measured_reward=0.5, idempotency_key="k")
    assert again == step


@pytest.mark.parametrize("unsaved", [{}, {"save": False, "recoverable": True}])
async def test_a_process_killed_after_a_step_leaves_its_key_with_its_request(
    home, platform, unsaved
):
    await make()
    trainer, body = TrainingClient("m"), {"idempotency_key": "k", **unsaved}
    await trainer.forward_backward(await sampled([0.0, 1.0]))
    await trainer.optim_step(learning_rate=1e-2, **body)
    model = platform.registry.model("m")
    session = platform.sessions._open[model.id]
    session.closed = True  # As after kill -9: nothing was saved later.
    platform.registry.leases.release(model.id, [])
    del platform.sessions._open[model.id]
    with pytest.raises(ConflictError, match="'k' was sent before"):
        await trainer.optim_step(learning_rate=1e-3, **body)
    assert (await trainer.optim_step(learning_rate=1e-2, **body)).step == 1


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_an_idempotency_key_has_one_to_255_characters(home, key):
    """An empty one made every step after the first return the first one's answer."""
    await make()
    body = {"learning_rate": 1e-3, "idempotency_key": key}
    with pytest.raises(UsageError, match="idempotency_key"):
        await connect().post("/v1/models/m/train/optim-step", body)


async def test_splitting_a_batch_changes_nothing(home, platform):
    await make()
    batch = await sampled([0.0, 1.0, 0.25, 0.5])
    trainer = TrainingClient("m")
    await trainer.forward_backward(batch, group_ids=["a", "a", "b", "b"])
    whole = platform.sessions._open[platform.registry.model("m").id].trained.trainer.gradients()
    whole = {name: gradient.clone() for name, gradient in whole.items()}
    await trainer.set_head("base")
    await trainer.forward_backward(batch[:2])
    await trainer.forward_backward(batch[2:], num_substeps=2)
    parts = platform.sessions._open[platform.registry.model("m").id].trained.trainer.gradients()
    for name, gradient in whole.items():
        np.testing.assert_allclose(parts[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
async def test_moving_the_head_back_restores_weights_and_makes_a_branch(home, platform):
    await make()
    trainer = TrainingClient("m")
    base = weights_of(platform)
    first = await trainer.step(await sampled([0.0, 1.0]), learning_rate=1e-2)
    after_first = weights_of(platform)
    await trainer.step(await sampled([0.0, 1.0], seed=9), learning_rate=1e-2)
    assert not same(after_first, weights_of(platform))
    await trainer.set_head(first.checkpoint_id)
    assert same(after_first, weights_of(platform))
    branch = await trainer.step(await sampled([1.0, 0.0]), learning_rate=1e-2)
    nodes = {node.id: node for node in await trainer.checkpoints()}
    assert nodes[branch.checkpoint_id].prev_model_checkpoint_id == first.checkpoint_id
    assert branch.step == 2
    await trainer.set_head("base")
    assert same(base, weights_of(platform))


@pytest.mark.slow
async def test_going_back_and_on_is_the_same_as_going_on(home, platform):
    await make()
    trainer = TrainingClient("m")
    first = await trainer.step(await sampled([0.0, 1.0]), learning_rate=1e-2)
    batch = await sampled([0.0, 1.0], seed=5)
    await trainer.step(batch, learning_rate=1e-2)
    straight = weights_of(platform)
    await trainer.set_head(first.checkpoint_id)
    await trainer.step(batch, learning_rate=1e-2)
    assert same(straight, weights_of(platform)), "moments and step count come back with the weights"


async def test_a_checkpoint_without_optimizer_state_is_trained_from_with_new_moments(
    home, platform
):
    await make()
    trainer = TrainingClient("m")
    first = await trainer.step(await sampled([0.0, 1.0]), learning_rate=1e-2)
    after_first = weights_of(platform)
    batch = await sampled([0.0, 1.0], seed=5)
    second = await trainer.step(batch, learning_rate=1e-2)
    straight = weights_of(platform)
    body = {
        "keep": [first.checkpoint_id],
        "weights_only": [first.checkpoint_id, second.checkpoint_id],
    }
    await connect().post("/v2/models/m/prune", body)
    model = platform.registry.model("m")
    folders = [node.folder for node in platform.registry.tree.with_files(model)]
    # The head keeps its own.
    assert [(folder / "state.safetensors").exists() for folder in folders] == [False, True]
    for folder in folders:
        verify_checkpoint(folder)
    await trainer.set_head(first.checkpoint_id)
    assert same(after_first, weights_of(platform))
    await trainer.step(batch, learning_rate=1e-2)
    assert not same(straight, weights_of(platform))


async def test_a_full_disk_keeps_the_old_head_and_its_weights(home, platform, monkeypatch):
    await make()
    trainer = TrainingClient("m")
    first = await trainer.step(await sampled([0.0, 1.0]), learning_rate=1e-2)
    before = weights_of(platform)
    batch = await sampled([0.0, 1.0], seed=5)
    await trainer.forward_backward(batch)
    real = tensor_file.save_file

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "save_file", full)
    with pytest.raises(StoreError, match="disk is full"):
        await trainer.optim_step(learning_rate=1e-2)
    assert same(before, weights_of(platform))
    assert (await trainer.head()).id == first.checkpoint_id
    assert [p.name for p in platform.registry.tree.place(platform.registry.model("m").id).iterdir()]
    monkeypatch.setattr(tensor_file, "save_file", real)
    await trainer.step(batch, learning_rate=1e-2)
    assert len(await trainer.checkpoints()) == 2


@pytest.mark.slow
async def test_a_damaged_head_is_refused_with_the_cure(home, platform):
    await make()
    trainer = TrainingClient("m")
    first = await trainer.step(await sampled([0.0, 1.0]), learning_rate=1e-2)
    second = await trainer.step(await sampled([0.0, 1.0], seed=3), learning_rate=1e-2)
    damage(second.sampler_path + "/model.safetensors")
    disconnect(home)
    with pytest.raises(StoreError, match=r"model\.safetensors is damaged") as told:
        await chat_model("m")
    assert f"hud models head m --set step-1-{first.checkpoint_id[:6]}" in str(told.value)
    with pytest.raises(StoreError, match="damaged"):
        await TrainingClient("m").forward_backward(two_payloads())
    await TrainingClient("m").set_head(first.checkpoint_id)
    await chat_model("m")


def damage(path):
    with open(path, "r+b") as file:
        file.seek(-4, 2)
        file.write(b"\xff\xff\xff\x7f")


def two_payloads():
    sample = TrajectorySample(prompt_token_ids=[1], output_token_ids=[2], output_logprobs=[-1.0])
    return [TrajectoryPayload(samples=[sample], reward=reward) for reward in (0.0, 1.0)]


@pytest.mark.slow
async def test_lora_trains_and_saves_only_the_adapter(home, platform):
    await make("m", training="lora", lora_rank=2)
    trainer = TrainingClient("m")
    base = weights_of(platform)
    made = await trainer.step(await sampled([0.0, 1.0]), learning_rate=1e-2)
    after = weights_of(platform)
    changed = {name for name in base if not bool((base[name] == after[name]).all())}
    assert changed
    assert all(".lora_" in name for name in changed)
    node = platform.registry.tree.get(made.checkpoint_id)
    assert {p.name for p in (node.folder / "sampler").iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
    }
    disconnect(home)
    reopened = connect().embedded.parts
    assert same(after, weights_of(reopened))
    await TrainingClient("m").set_head("base")
    assert same(base, weights_of(reopened))


@pytest.mark.slow
async def test_an_exported_adapter_is_merged(home, platform, tmp_path):
    from hud.engine.pretrained import load_decoder

    await make("m", training="lora", lora_rank=2)
    await TrainingClient("m").step(await sampled([0.0, 1.0]), learning_rate=1e-1)
    target = tmp_path / "exported"
    await connect().post("/v2/models/m/export", {"folder": str(target)})
    merged = dict(load_decoder(target).named_parameters())
    base = dict(load_decoder(platform.registry.model("m").folder).named_parameters())
    assert any(not bool((merged[name] == base[name]).all()) for name in base)
    again = await connect().post("/v2/models/add", {"source": str(target), "name": "merged"})
    assert again["model_name"] == "merged"


async def test_a_forward_context_is_used_once(home):
    await make()
    trainer = TrainingClient("m")
    found = await trainer.forward(await sampled([0.0, 1.0]))
    weights = [[0.1 * m for m in datum.mask] for datum in found.data]
    await trainer.backward(found.forward_id, weights)
    with pytest.raises(NotFoundError, match="Call forward again"):
        await trainer.backward(found.forward_id, weights)
    with pytest.raises(NotFoundError, match="Call forward again"):
        await trainer.backward("no such", weights)


@pytest.mark.slow
async def test_kl_to_the_weights_it_began_with_is_in_the_loss(home):
    await make()
    trainer = TrainingClient("m")
    batch = await sampled([0.0, 1.0])
    await trainer.step(batch, learning_rate=5e-2)
    plain = await trainer.forward_backward(batch)
    held = await trainer.forward_backward(batch, loss_fn_config={"kl_coef": 1.0})
    assert held.metrics["loss:sum"] > plain.metrics["loss:sum"]


async def test_ids_outside_the_vocabulary_are_refused(home):
    await make()
    sample = TrajectorySample(
        prompt_token_ids=[1], output_token_ids=[99999], output_logprobs=[-1.0]
    )
    batch = [TrajectoryPayload(samples=[sample], reward=reward) for reward in (0.0, 1.0)]
    with pytest.raises(UsageError, match="another tokenizer"):
        await TrainingClient("m").forward_backward(batch)


async def test_runs_beyond_the_context_are_refused(home):
    await make()
    sample = TrajectorySample(
        prompt_token_ids=[1] * 60, output_token_ids=[2] * 5, output_logprobs=[-1.0] * 5
    )
    batch = [TrajectoryPayload(samples=[sample], reward=reward) for reward in (0.0, 1.0)]
    trainer = TrainingClient("m")
    with pytest.raises(UsageError, match="has 65 tokens; the model's context holds 64"):
        await trainer.forward_backward(batch)
    # Runs of a teacher, whose context may be another, too.
    with pytest.raises(UsageError, match="has 65 tokens; the model's context holds 64"):
        await trainer.forward_backward(batch, loss_fn="cross_entropy")


@pytest.mark.parametrize("odd", [2**63, -(2**63) - 1, 10**40])
async def test_ids_beyond_64_bits_are_refused(home, odd):
    await make()
    sample = {"prompt_token_ids": [1], "output_token_ids": [odd], "output_logprobs": [-1.0]}
    body = {"inputs": [{"samples": [sample], "reward": 1.0}]}
    model = await TrainingClient("m").model_id()
    with pytest.raises(UsageError, match="output_token_ids"):
        await connect().post(f"/v1/models/{model}/train/forward-backward", body)


async def test_failed_runs_are_dropped_as_asked(home):
    await make()
    batch = await sampled([0.0, 1.0, 0.5, 0.0, 1.0])
    batch[4] = batch[4].model_copy(update={"failure": "environment"})
    trainer = TrainingClient("m")
    ids = ["a", "a", "b", "b", "b"]
    alone = await trainer.forward_backward(batch, group_ids=ids)
    assert (alone.num_datums, alone.metrics["dropped_groups:sum"]) == (4, 0.0)
    together = await trainer.forward_backward(
        batch, group_ids=ids, advantages=AdvantageOptions(failed_runs="drop_group")
    )
    assert (together.num_datums, together.metrics["dropped_groups:sum"]) == (2, 1.0)


async def test_an_unknown_loss_or_key_is_refused_by_name(home):
    await make()
    batch = await sampled([0.0, 1.0])
    with pytest.raises(UsageError, match="no loss 'pppo'"):
        await TrainingClient("m").forward_backward(batch, loss_fn="pppo")
    with pytest.raises(UsageError, match="takes no key 'epsilom'"):
        await TrainingClient("m").forward_backward(
            batch, loss_fn="ppo", loss_fn_config={"epsilom": 1}
        )


@pytest.mark.slow
async def test_a_pinned_checkpoint_does_not_follow_the_head(home, platform):
    await make()
    trainer = TrainingClient("m")
    first = await trainer.step(await sampled([0.0, 1.0]), learning_rate=1e-2)
    pinned = await chat_model("m", first.checkpoint_id)
    await trainer.step(await sampled([0.0, 1.0], seed=4), learning_rate=1e-2)
    done = await pinned.complete(
        [{"role": "user", "content": "x"}], [], SamplingParams(max_tokens=2, seed=1)
    )
    assert done.sample.checkpoint == first.checkpoint_id


async def test_steps_that_are_not_saved_serve_at_once_and_are_part_of_the_next_checkpoint(
    home, platform
):
    await make()
    trainer = TrainingClient("m")
    base = weights_of(platform)
    await trainer.forward_backward(await sampled([0.0, 1.0]))
    unsaved = await trainer.optim_step(learning_rate=1e-2, save=False)
    assert (unsaved.step, unsaved.checkpoint_id) == (1, "")
    ahead = weights_of(platform)
    assert not same(base, ahead)
    batch = await sampled(
        [0.0, 1.0], seed=5
    )  # Asking for the model must not bring the old weights back.
    assert same(ahead, weights_of(platform))
    saved = await trainer.step(batch, learning_rate=1e-2)
    assert saved.step == 2
    assert len(await trainer.checkpoints()) == 1
    await trainer.forward_backward(batch)
    await trainer.optim_step(learning_rate=1e-2, save=False)
    after = load_file(f"{saved.sampler_path}/model.safetensors")
    await platform.sessions.close(platform.registry.model("m").id)
    assert same(after, weights_of(platform)), "what was not saved is gone when the session ends"


async def test_a_home_that_is_disconnected_leaves_its_models_to_other_processes(home):
    model = await make()
    await TrainingClient("m").forward_backward(await sampled([0.0, 1.0]))
    disconnect(home)
    store = Store.open(home)
    assert Leases(store).holder(plain(model["id"])) is None
    store.close()
