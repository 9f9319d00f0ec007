"""Sampling by Tinker's client, as released, on `hud up`: `scripts/setup-integration tinker`."""

import pickle

import numpy as np
import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

import tinker
import torch
from tests.integrations.tinker.server import folder_of, logprobs_of
from tinker import types
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.timeout(300)
PROMPT = [7, 20, 33, 46]


@pytest.fixture(scope="module")
def service(server):
    made = tinker.ServiceClient(base_url=server.url, api_key=f"tml-{server.key}")
    yield made
    made.close("success").result()


@pytest.fixture(scope="module")
def model(server):
    return AutoModelForCausalLM.from_pretrained(folder_of(server), dtype=torch.float64).eval()


def sample(client, prompt=PROMPT, count=1, sampling=None, **more):
    params = types.SamplingParams(**{"max_tokens": 6, **(sampling or {})})
    return client.sample(types.ModelInput.from_ints(prompt), count, params, **more).result()


def tokens_of(response):
    return [one.tokens for one in response.sequences]


def test_samples_carry_the_logprobs_under_which_they_were_drawn(service, model):
    client = service.create_sampling_client(base_model="m").result()
    found = sample(client, count=5, sampling={"stop": []})
    assert len({tuple(one) for one in tokens_of(found)}) == 5
    assert len({one.sequence_id for one in found.sequences}) == 5
    for one in found.sequences:
        assert one.stop_reason == "length"
        with torch.no_grad():
            expected = logprobs_of(model, PROMPT + one.tokens)[len(PROMPT) - 1 :]
        assert one.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_seed_repeats_a_request_and_its_sequences_differ(service):
    client = service.create_sampling_client(base_model="m").result()
    first = tokens_of(sample(client, count=3, sampling={"seed": 5}))
    assert tokens_of(sample(client, count=3, sampling={"seed": 5})) == first
    assert tokens_of(sample(client, count=1, sampling={"seed": 5})) == first[:1]
    assert len({tuple(one) for one in first}) == 3
    other = tokens_of(sample(client, count=3, sampling={"seed": 6}))
    assert not {map(tuple, other)} & {map(tuple, first)}


def test_greedy_and_truncated_sampling_choose_likely_tokens(service, model):
    client = service.create_sampling_client(base_model="m").result()
    greedy = tokens_of(sample(client, sampling={"temperature": 0.0, "stop": []}))[0]
    ids = list(PROMPT)
    for _ in range(6):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert greedy == ids[len(PROMPT) :]
    assert tokens_of(sample(client, sampling={"top_k": 1, "stop": []}))[0] == greedy


def test_stops_are_ids_texts_nothing_or_the_models_own(server, service):
    client = service.create_sampling_client(base_model="m").result()
    free = {"seed": 1, "max_tokens": 20}
    whole = sample(client, sampling={**free, "stop": []}).sequences[0]
    assert (len(whole.tokens), whole.stop_reason) == (20, "length")

    third = whole.tokens[2]
    by_id = sample(client, sampling={**free, "stop": [third]}).sequences[0]
    assert by_id.tokens == whole.tokens[: whole.tokens.index(third) + 1]
    assert by_id.stop_reason == "stop"

    tokenizer = AutoTokenizer.from_pretrained(folder_of(server))
    text = tokenizer.decode(whole.tokens[:5])
    stop = text[-2:]
    by_text = sample(client, sampling={**free, "stop": stop}).sequences[0]
    assert by_text.stop_reason == "stop"
    assert stop in tokenizer.decode(by_text.tokens)
    assert stop not in tokenizer.decode(by_text.tokens[:-1])
    assert by_text.tokens == whole.tokens[: len(by_text.tokens)]

    end = tokenizer.eos_token_id
    own = sample(client, count=40, sampling={"max_tokens": 60, "seed": 7}).sequences
    ended = [one for one in own if one.stop_reason == "stop"]
    assert ended
    assert all(one.tokens[-1] == end and end not in one.tokens[:-1] for one in ended)


def test_logprobs_of_the_prompt_and_the_likeliest_tokens(service, model):
    client = service.create_sampling_client(base_model="m").result()
    found = sample(
        client,
        sampling={"max_tokens": 2, "stop": []},
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
        topk_sample_logprobs=2,
    )
    with torch.no_grad():
        expected = logprobs_of(model, PROMPT).tolist()
        ids = PROMPT + found.sequences[0].tokens
        table = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert found.prompt_logprobs[0] is None
    assert found.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    assert found.topk_prompt_logprobs[0] is None or np.isnan(found.topk_prompt_logprobs[0][0][1])
    for place in range(1, len(PROMPT)):
        values, tokens = table[place - 1].topk(3)
        row = found.topk_prompt_logprobs[place]
        assert [token for token, _ in row] == tokens.tolist()
        assert [value for _, value in row] == pytest.approx(values.tolist(), abs=1e-4)
    drawn = found.sequences[0].topk_logprobs
    for place in range(2):
        values, tokens = table[len(PROMPT) - 1 + place].topk(2)
        assert [token for token, _ in drawn[place]] == tokens.tolist()
        assert [value for _, value in drawn[place]] == pytest.approx(values.tolist(), abs=1e-4)

    scored = client.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()
    assert scored[0] is None
    assert scored[1:] == pytest.approx(expected, abs=1e-4)
    last = client.compute_logprobs(types.ModelInput.from_ints(PROMPT), 2).result()
    assert last[:2] == [None, None]
    assert last[2:] == pytest.approx(expected[1:], abs=1e-4)


def draws(client, count, seed, **sampling):
    asked = {"max_tokens": 1, "seed": seed, **sampling}
    found = sample(client, sampling=asked, prompt_alt_tokens_k=count).prompt_alt_tokens
    assert found.tokens.shape == found.logprobs.shape == [len(PROMPT) - 1, count]
    shape = (len(PROMPT) - 1, count)
    return np.reshape(found.tokens.data, shape), np.reshape(found.logprobs.data, shape)


def test_alternatives_to_the_tokens_of_a_prompt_are_drawn_by_the_model(service, model):
    client = service.create_sampling_client(base_model="m").result()
    with torch.no_grad():
        table = model(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)
    tokens, logprobs = draws(client, 64, seed=3)
    expected = table.gather(-1, torch.from_numpy(tokens.astype(np.int64)))
    np.testing.assert_allclose(logprobs, expected.numpy(), atol=1e-4)
    # 64 draws of each position: their mean logprob is minus the entropy, to some standard errors.
    chances = table.exp()
    means, variances = (chances * table).sum(-1), (chances * table.square()).sum(-1)
    error = ((variances - means.square()) / 64).sqrt()
    assert (np.abs(logprobs.mean(1) - means.numpy()) < 5 * error.numpy() + 1e-6).all()

    assert (draws(client, 64, seed=3)[0] == tokens).all()
    assert (draws(client, 64, seed=4)[0] != tokens).any()
    greedy, _ = draws(client, 2, seed=3, temperature=0.0)
    assert (greedy == table.argmax(-1).numpy()[:, None]).all()
    assert sample(client).prompt_alt_tokens is None


@pytest.mark.parametrize("sparse", [False, True])
def test_tokens_of_choice_are_scored_at_positions_of_choice(service, model, sparse):
    client = service.create_sampling_client(base_model="m").result()
    ids = torch.tensor([[-1, 11], [40, -1], [-1, -1]])
    if sparse:
        given = types.TensorData.from_torch_sparse(ids, pad_value=-1)
    else:
        given = types.TensorData.from_torch(ids)
    found = sample(client, sampling={"max_tokens": 1}, target_prompt_logprobs=given)
    scored = found.target_prompt_logprobs
    assert (scored.dtype, scored.shape) == ("float32", [3, 2])
    assert scored.sparse_crow_indices == given.sparse_crow_indices
    assert scored.sparse_col_indices == given.sparse_col_indices
    with torch.no_grad():
        table = model(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)
    expected = torch.zeros(3, 2, dtype=torch.float64)
    expected[0, 1], expected[1, 0] = table[0, 11], table[1, 40]
    np.testing.assert_allclose(scored.to_torch().numpy(), expected.numpy(), atol=1e-4)
    assert found.prompt_logprobs is None
    assert sample(client).target_prompt_logprobs is None


def test_tokens_of_a_long_prompt_are_scored_at_every_position(service, model):
    client = service.create_sampling_client(base_model="m").result()
    prompt = [7 + place % 90 for place in range(400)]
    ids = torch.tensor([[place % 100, 40] for place in range(399)])
    found = sample(
        client,
        prompt,
        sampling={"max_tokens": 1},
        target_prompt_logprobs=types.TensorData.from_torch(ids),
        include_prompt_logprobs=True,
    )
    with torch.no_grad():
        table = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    expected = table.gather(-1, ids).numpy()
    np.testing.assert_allclose(found.target_prompt_logprobs.to_numpy(), expected, atol=1e-4)
    assert len(found.prompt_logprobs) == 400


def learned(client, times=2):
    ids = [7, 8, 9, 10, 11, 12]
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * 5},
    )
    for _ in range(times):
        client.forward_backward([datum], "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()


SCORED = types.ModelInput.from_ints([7, 8, 9, 10, 11, 12])


def test_a_snapshot_stays_at_its_weights_and_an_inflight_client_follows(service):
    client = service.create_lora_training_client("m", rank=4).result()
    learned(client)
    snapshot = client.save_weights_and_get_sampling_client().result()
    inflight = client.save_weights_and_get_sampling_client(kind="inflight").result()
    before = snapshot.compute_logprobs(SCORED).result()
    drawn = sample(snapshot, count=2, sampling={"seed": 3})
    assert inflight.compute_logprobs(SCORED).result() == before

    learned(client)
    assert snapshot.compute_logprobs(SCORED).result() == pytest.approx(before, abs=1e-5)
    again = sample(snapshot, count=2, sampling={"seed": 3})
    assert tokens_of(again) == tokens_of(drawn)
    assert inflight.compute_logprobs(SCORED).result()[1:] != pytest.approx(before[1:], abs=1e-3)

    named = client.save_weights_for_sampler("now").result().path
    assert named == f"tinker://{client.model_id}/sampler_weights/now"
    other = service.create_sampling_client(model_path=named).result()
    assert other.get_base_model() == "m"
    fresh = client.save_weights_and_get_sampling_client().result()
    assert other.compute_logprobs(SCORED).result() == fresh.compute_logprobs(SCORED).result()


def test_a_sampling_client_is_carried_to_another_process(service):
    client = service.create_sampling_client(base_model="m").result()
    copied = pickle.loads(pickle.dumps(client))
    assert tokens_of(sample(copied, sampling={"seed": 2})) == tokens_of(
        sample(client, sampling={"seed": 2})
    )


def target_ids(ids):
    return types.TensorData.from_torch(torch.tensor(ids))


@pytest.mark.parametrize(
    ("prompt", "sampling", "more", "said"),
    [
        ([], {}, {}, "prompt is empty"),
        ([9_999], {}, {}, "9999"),
        ([7] * 600, {}, {}, "holds 512"),
        (PROMPT, {}, {"prompt_alt_tokens_k": 65}, "at most 64"),
        (PROMPT, {}, {"topk_sample_logprobs": 50}, "at most 20"),
        (PROMPT, {}, {"target_prompt_logprobs": target_ids([[7]])}, "takes 3 rows"),
        (PROMPT, {}, {"target_prompt_logprobs": target_ids([[-1]] * 3)}, "names no token"),
        (PROMPT, {}, {"target_prompt_logprobs": target_ids([[7], [9_999], [7]])}, "9999"),
    ],
)
def test_a_request_that_cannot_be_sampled_is_one_sentence(service, prompt, sampling, more, said):
    client = service.create_sampling_client(base_model="m").result()
    with pytest.raises(tinker.RequestFailedError, match=said) as error:
        sample(client, prompt, sampling=sampling, **more)
    assert error.value.category == "user"


def test_unknown_models_and_paths_are_refused(service):
    with pytest.raises(tinker.NotFoundError, match="There is no model 'nothing'"):
        service.create_sampling_client(base_model="nothing").result()
    with pytest.raises(tinker.NotFoundError, match="has no checkpoint 'nothing'"):
        service.create_sampling_client(model_path="tinker://m/weights/nothing").result()
    with pytest.raises(tinker.BadRequestError, match="is no checkpoint's path"):
        service.create_sampling_client(model_path="tinker://m").result()
