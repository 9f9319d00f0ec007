"""Training by Tinker's client, as released, on `hud up`: `scripts/setup-integration tinker`."""

import numpy as np
import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

import tinker
import torch
from tests.integrations.tinker.server import folder_of, logprobs_of
from tinker import types
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.timeout(300)
INPUT = types.ModelInput.from_ints([7, 8])
SEVERAL = {
    "target_tokens": np.asarray([[1, 2], [3, 4]]),
    "weights": np.asarray([[1.0, 0.5], [0.5, 1.0]], np.float32),
}
CLIPS = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}


@pytest.fixture
def service(server):
    made = tinker.ServiceClient(base_url=server.url, api_key=f"tml-{server.key}")
    yield made
    made.close("success").result()


def full_client(service, path="tinker://m/weights/base"):
    return service.create_training_client_from_state(path).result()


def oracle(server):
    return AutoModelForCausalLM.from_pretrained(folder_of(server), dtype=torch.float64)


def batch(seed=0, count=4, prompt=5, length=7):
    """Sequences of random tokens, with what a policy gradient needs; the prompt has no advantage."""
    drawn = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        ids = drawn.integers(5, 290, prompt + length).tolist()
        advantages = np.zeros(prompt + length - 1, np.float32)
        advantages[prompt - 1 :] = drawn.normal() or 1.0
        q = np.zeros(prompt + length - 1, np.float32)
        q[prompt - 1 :] = drawn.normal(-6, 0.3, length)
        rows.append((ids, advantages, q))
    return rows


def policy_datum(ids, advantages, q, **more):
    inputs = {"target_tokens": ids[1:], "logprobs": q, "advantages": advantages, **more}
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def supervised_datum(ids, weights):
    inputs = {"target_tokens": ids[1:], "weights": weights}
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def loss_of(name, lp, q, advantages):
    """The loss of a sequence in float64, written down from the formulas of Tinker's documentation."""
    q, advantages = torch.tensor(q, dtype=torch.float64), torch.tensor(advantages).double()
    ratio = (lp - q).exp()
    low, high = CLIPS["clip_low_threshold"], CLIPS["clip_high_threshold"]
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    if name == "ppo":
        return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages).sum()
    if name == "cispo":
        return -(ratio.clamp(low, high).detach() * lp * advantages).sum()
    if name == "dro":
        return -(lp * advantages - 0.5 * 0.1 * (lp - q) ** 2).sum()
    marked = advantages != 0
    mean = (lp.detach() - q)[marked].mean()
    tokenwise = (mean + lp - lp.detach()).exp()
    return -torch.minimum(tokenwise * advantages, tokenwise.clamp(low, high) * advantages).sum()


CONFIGS = {
    "importance_sampling": {},
    "ppo": CLIPS,
    "cispo": CLIPS,
    "dro": {"beta": 0.1},
    "gspo": CLIPS,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_losses_and_gradients_are_those_of_a_float64_oracle(server, service, name):
    client, rows, model = full_client(service), batch(), oracle(server)
    # Near the policy, so that some ratios lie inside the clip and some outside.
    with torch.no_grad():
        now = [logprobs_of(model, ids).numpy() for ids, _, _ in rows]
    drawn = np.random.default_rng(1)
    rows = [
        (ids, advantages, np.where(q != 0, lp + drawn.normal(0, 0.1, len(lp)), 0).astype("f4"))
        for (ids, advantages, q), lp in zip(rows, now, strict=True)
    ]
    more = {}
    if name == "gspo":
        more = {"sequence_ratio_mask": (rows[0][1] != 0).astype(np.float32)}
    data = [policy_datum(*row, **more) for row in rows]
    forward = client.forward(data, name, CONFIGS[name]).result()
    done = client.forward_backward(data, name, CONFIGS[name]).result()
    client.optim_step(types.AdamParams(learning_rate=1e-3)).result()

    losses = [loss_of(name, logprobs_of(model, ids), q, a) for ids, a, q in rows]
    total = torch.stack(losses).sum()
    assert done.metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-4, abs=1e-4)
    assert forward.metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-4, abs=1e-4)
    for found, expected in zip(done.loss_fn_outputs, now, strict=True):
        assert found["logprobs"].to_numpy() == pytest.approx(expected, abs=1e-4)

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-12, weight_decay=0
    )
    total.backward()
    optimizer.step()
    after = client.forward([supervised_datum(rows[0][0], np.ones(11))], "cross_entropy").result()
    expected = logprobs_of(model, rows[0][0]).detach().numpy()
    # Adam's first step is the sign of the gradient: rounding decides it where a gradient is near 0.
    assert after.loss_fn_outputs[0]["logprobs"].to_numpy() == pytest.approx(expected, abs=5e-3)


def test_cross_entropy_predicts_the_targets_given_not_the_next_inputs(server, service):
    client, model = full_client(service), oracle(server)
    ids, targets, weights = [7, 8, 9, 10], [100, 9, 50, 60], [0.0, 2.0, -0.5, 1.0]
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(ids),
        loss_fn_inputs={"target_tokens": targets, "weights": weights},
    )
    done = client.forward_backward([datum], "cross_entropy").result()
    with torch.no_grad():
        table = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [table[place, token].item() for place, token in enumerate(targets)]
    assert done.loss_fn_outputs[0]["logprobs"].to_numpy() == pytest.approx(expected, abs=1e-4)
    total = -sum(w * lp for w, lp in zip(weights, expected, strict=True))
    assert done.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)


def stepped(client, datums_of_calls, name="importance_sampling"):
    """Take one step over some calls, and return logprobs of a fixed sequence."""
    passes = [client.forward_backward(data, name) for data in datums_of_calls]
    step = client.optim_step(types.AdamParams(learning_rate=1e-3))
    for one in passes:
        one.result()
    step.result()
    probe = supervised_datum([7, 8, 9, 10, 11, 12], np.ones(5))
    return (
        client.forward([probe], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
    )


def test_calls_and_shared_prompts_do_not_change_the_gradient(service):
    prompt = list(range(20, 45))  # Long enough for a row that the sequences of a group share.
    rows = [
        (
            [*prompt, *ids],
            np.concatenate([np.zeros(25, "f4"), a]),
            np.concatenate([np.zeros(25, "f4"), q]),
        )
        for ids, a, q in batch(prompt=1)
    ]
    data = [policy_datum(*row) for row in rows]
    whole = stepped(full_client(service), [data])
    single = stepped(full_client(service), [[one] for one in reversed(data)])
    assert whole == pytest.approx(single, abs=2e-3)


def test_a_custom_loss_steps_as_the_builtin_one(service):
    rows = batch()
    data = [policy_datum(*row) for row in rows]
    builtin = stepped(full_client(service), [data])

    def importance(datums, logprobs):
        total = torch.zeros(())
        for datum, lp in zip(datums, logprobs, strict=True):
            given = datum.loss_fn_inputs
            total = (
                total
                - ((lp - given["logprobs"].to_torch()).exp() * given["advantages"].to_torch()).sum()
            )
        return total, {"mine:sum": float(total.detach())}

    client = full_client(service)
    done = client.forward_backward_custom(data, importance)
    step = client.optim_step(types.AdamParams(learning_rate=1e-3))
    assert done.result().metrics["mine:sum"] == pytest.approx(done.result().metrics["loss:sum"])
    step.result()
    probe = supervised_datum([7, 8, 9, 10, 11, 12], np.ones(5))
    after = client.forward([probe], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    assert after.to_numpy() == pytest.approx(builtin, abs=2e-3)


def trained(client, seeds):
    for seed in seeds:
        client.forward_backward([policy_datum(*row) for row in batch(seed)], "importance_sampling")
        client.optim_step(types.AdamParams(learning_rate=1e-3)).result()


def several(ids, each, seed=0):
    """A datum with random targets and weights, `each` for every position, some of weight 0."""
    drawn = np.random.default_rng(seed)
    shape = (len(ids) - 1, each)
    inputs = {
        "target_tokens": drawn.integers(5, 290, shape),
        "weights": (drawn.random(shape) * (drawn.random(shape) < 0.7)).astype(np.float32),
    }
    model_input = types.ModelInput.from_ints(ids[:-1])
    return types.Datum(model_input=model_input, loss_fn_inputs=inputs), inputs


@pytest.mark.parametrize("length", [8, 40])  # Long inputs are computed once for all targets.
def test_several_targets_of_a_position_are_weighted_each(server, service, length):
    client = full_client(service)
    ids = np.random.default_rng(1).integers(5, 290, length).tolist()
    plain = supervised_datum(ids[:6], np.ones(5))
    datum, inputs = several(ids, 3)
    (theirs, _), alone = several(ids, 1), client.forward([plain], "cross_entropy").result()
    found = client.forward_backward([plain, datum, theirs], "cross_entropy").result()

    model = oracle(server)
    table = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    expected = table.gather(-1, torch.from_numpy(inputs["target_tokens"]))
    first, second, third = (one["logprobs"] for one in found.loss_fn_outputs)
    assert second.shape == [length - 1, 3]
    np.testing.assert_allclose(second.to_numpy().reshape(-1, 3), expected.detach(), atol=1e-4)
    assert (first.shape, third.shape) == ([5], [length - 1, 1])
    np.testing.assert_allclose(
        first.to_numpy(), alone.loss_fn_outputs[0]["logprobs"].to_numpy(), atol=1e-5
    )
    assert found.metrics["datums:sum"] == 3


def test_the_client_may_send_them_without_their_zeros(service):
    """As it does with torch's tensors, where that is shorter."""
    ids = np.random.default_rng(3).integers(5, 290, 12).tolist()
    targets = np.zeros((11, 8), np.int64)
    weights = np.zeros((11, 8), np.float32)
    targets[:, 0], weights[:, 0] = ids[1:], 1.0
    targets[4, 5], weights[4, 5] = 9, 0.5
    model_input = types.ModelInput.from_ints(ids[:-1])
    kinds = [
        {"target_tokens": targets, "weights": weights},
        {"target_tokens": torch.from_numpy(targets), "weights": torch.from_numpy(weights)},
    ]
    dense, sparse = (
        types.Datum(model_input=model_input, loss_fn_inputs=inputs) for inputs in kinds
    )
    assert sparse.loss_fn_inputs["weights"].sparse_crow_indices is not None
    results = [
        full_client(service).forward([one], "cross_entropy").result() for one in (dense, sparse)
    ]
    rows = [found.loss_fn_outputs[0]["logprobs"].to_numpy() for found in results]
    np.testing.assert_allclose(*rows, atol=1e-5)
    assert results[0].metrics["loss:sum"] == pytest.approx(results[1].metrics["loss:sum"])


def test_the_gradient_of_several_targets_is_the_sum_of_each(service):
    ids = np.random.default_rng(2).integers(5, 290, 30).tolist()
    datum, inputs = several(ids, 3)
    together, apart = full_client(service), full_client(service)
    together.forward_backward([datum], "cross_entropy").result()
    single = [
        types.Datum(
            model_input=types.ModelInput.from_ints(ids[:-1]),
            loss_fn_inputs={
                "target_tokens": inputs["target_tokens"][:, place],
                "weights": inputs["weights"][:, place],
            },
        )
        for place in range(3)
    ]
    apart.forward_backward(single, "cross_entropy").result()
    for client in (together, apart):
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    before = probe(full_client(service))
    np.testing.assert_allclose(probe(together), probe(apart), atol=1e-4)
    assert np.abs(probe(together) - before).max() > 1e-2


def probe(client):
    data = [supervised_datum(ids, np.ones(len(ids) - 1)) for ids, _, _ in batch(9)]
    outputs = client.forward(data, "cross_entropy").result().loss_fn_outputs
    return np.concatenate([one["logprobs"].to_numpy() for one in outputs])


@pytest.mark.parametrize("lora", [True, False])
def test_training_continues_from_a_saved_state_as_if_never_interrupted(service, lora):
    def begun():
        return (
            service.create_lora_training_client("m", rank=4).result()
            if lora
            else full_client(service)
        )

    straight = begun()
    trained(straight, [1, 2, 3])
    first = begun()
    trained(first, [1, 2])
    path = first.save_state("two").result().path
    assert path == f"tinker://{first.model_id}/weights/two"

    second = service.create_training_client_from_state_with_optimizer(path).result()
    assert second.get_info().is_lora is lora
    assert probe(second) == pytest.approx(probe(first), abs=1e-6)
    trained(second, [3])
    assert probe(second) == pytest.approx(probe(straight), abs=1e-5)

    weights_only = service.create_training_client_from_state(path).result()
    trained(weights_only, [3])
    assert np.abs(probe(weights_only) - probe(straight)).max() > 1e-3  # It has no moments.

    trained(first, [5])
    with pytest.warns(FutureWarning):
        first.load_state_with_optimizer(path).result()
    trained(first, [3])
    assert probe(first) == pytest.approx(probe(straight), abs=1e-5)
    with pytest.warns(FutureWarning):
        first.load_state(path).result()
    trained(first, [3])
    assert probe(first) == pytest.approx(probe(weights_only), abs=1e-5)


def test_a_model_loads_the_state_of_another_of_its_shape_only(service):
    source = service.create_lora_training_client("m", rank=4).result()
    trained(source, [1])
    path = source.save_state("one").result().path
    other = service.create_lora_training_client("m", rank=4).result()
    with pytest.warns(FutureWarning):
        other.load_state(path).result()
    assert probe(other) == pytest.approx(probe(source), abs=1e-6)
    wider = service.create_lora_training_client("m", rank=8).result()
    with (
        pytest.warns(FutureWarning),
        pytest.raises(tinker.RequestFailedError, match="of another shape or base"),
    ):
        wider.load_state(path).result()


def test_a_failed_pass_leaves_nothing_for_a_step_to_apply(service):
    client = full_client(service)
    good, bad = supervised_datum([7, 8, 9], [1, 1]), supervised_datum([7, 8, 9_999], [1, 1])
    before = probe(client)
    client.forward_backward([good], "cross_entropy").result()
    failed = client.forward_backward([bad], "cross_entropy")
    step = client.optim_step(types.AdamParams(learning_rate=1e-2))
    with pytest.raises(
        tinker.RequestFailedError, match="target_tokens of Datum 0 holds token id 9999"
    ):
        failed.result()
    with pytest.raises(tinker.RequestFailedError, match="Nothing was accumulated"):
        step.result()
    assert (probe(client) == before).all()


@pytest.mark.parametrize(
    ("data", "loss", "config", "said"),
    [
        (
            [supervised_datum([7, 8], [1])],
            "ppo",
            None,
            "Datum 0 has no logprobs, which the loss 'ppo' takes",
        ),
        (
            [supervised_datum([7, 8], [1])],
            "stable_reinforce",
            None,
            "There is no loss 'stable_reinforce'",
        ),
        ([supervised_datum([7, 8], [1])], "cross_entropy", {"beta": 1.0}, "takes no key 'beta'"),
        (
            [supervised_datum([7, 8, 9], [1])],
            "cross_entropy",
            None,
            "weights of Datum 0 has 1 entries for 2",
        ),
        (
            [types.Datum(model_input=INPUT, loss_fn_inputs={**SEVERAL, "advantages": [1.0, 1.0]})],
            "ppo",
            None,
            "several targets for each position, which only cross_entropy takes",
        ),
    ],
)
def test_what_a_loss_cannot_take_is_one_sentence(service, data, loss, config, said):
    with pytest.raises(tinker.RequestFailedError, match=said) as error:
        full_client(service).forward_backward(data, loss, config).result()
    assert error.value.category == "user"


@pytest.mark.parametrize(
    "inputs",
    [
        {"target_tokens": SEVERAL["target_tokens"], "weights": np.ones(2, np.float32)},
        {"target_tokens": np.ones(2, np.int64), "weights": SEVERAL["weights"]},
    ],
)
def test_after_a_pass_or_a_step_that_is_refused_the_client_goes_on(service, inputs):
    client = full_client(service)
    datum = types.Datum(model_input=INPUT, loss_fn_inputs=inputs)
    with pytest.raises(tinker.RequestFailedError, match="must have the shape of its target_tokens"):
        client.forward_backward([datum], "cross_entropy").result()
    with pytest.raises(tinker.UnprocessableEntityError, match="learning_rate"):
        client.optim_step(types.AdamParams(learning_rate=-1.0)).result()
    client.forward_backward([supervised_datum([7, 8, 9], [1, 1])], "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result(timeout=60)


def test_an_unknown_model_and_a_foreign_optimizer_are_refused(service):
    with pytest.raises(tinker.RequestFailedError, match="There is no model 'nothing'"):
        service.create_lora_training_client("nothing").result()
    with pytest.raises(tinker.BadRequestError, match="no optimizer 'dimuon' here"):
        service.create_lora_training_client("m", optimizer=types.DimuonOptimizerConfig()).result()
