"""The trainer on the real decoders: shared prompts, transformers' gradients, adapters that are live."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.learn.small_decoder import SmallDecoder
from tests.engine.rounding import sum_tolerance

from hud.engine.config import DecoderConfig
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.options import TrainerOptions
from hud.engine.lora import LoraConfig, load_adapter, save_adapter
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.pretrained import save_decoder
from hud.errors import UsageError
from hud.learning.datums import Datum

VOCABULARY = 61


def decoder(kind="qwen3", tied=True, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    config = DecoderConfig(
        model_type=kind,
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
    )
    made = ReferenceDecoder(config)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return made.to(dtype)


def grouped_batch(seed=0, groups=3, size=4, prompt=24):
    """Groups that share a prompt, some of whose runs end after one token."""
    rng = np.random.default_rng(seed)
    datums = []
    for group in range(groups):
        shared = rng.integers(0, VOCABULARY, prompt + group)
        for run in range(size):
            rest = 1 if run == 3 else int(rng.integers(3, 20))
            mask = np.zeros(len(shared) + rest, np.float32)
            mask[len(shared)] = 1
            mask[len(shared) :] = np.maximum(mask[len(shared) :], rng.random(rest) < 0.6)
            datums.append(
                Datum(
                    tokens=np.concatenate([shared, rng.integers(0, VOCABULARY, rest)]),
                    mask=mask,
                    logprobs=(mask * rng.normal(-4, 0.3, len(mask))).astype(np.float32),
                    advantages=mask * np.float32(rng.normal()),
                    weights=mask,
                    temperatures=np.full(len(mask), 0.8 if run == 1 else 1.0, np.float32),
                    traj_idx=len(datums),
                    group_idx=group,
                )
            )
    return datums


def gradients(it):
    return {name: tensor.clone() for name, tensor in it.gradients().items()}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("budget", [60, 10_000])
def test_a_shared_prompt_is_computed_once_and_changes_nothing(kind, budget):
    datums = grouped_batch()
    shared = LocalTrainer(decoder(kind, dtype=torch.float64), pass_tokens=budget)
    alone = LocalTrainer(decoder(kind, dtype=torch.float64), pass_tokens=budget)
    alone.decoder.shares_prefixes = False
    fewer, more = shared.forward_backward(datums, "ppo"), alone.forward_backward(datums, "ppo")
    assert fewer["tokens:sum"] < (0.6 if budget > 60 else 0.9) * more["tokens:sum"]
    assert fewer["loss:sum"] == pytest.approx(more["loss:sum"], rel=1e-10)
    assert fewer["action_tokens:sum"] == more["action_tokens:sum"]
    expected = gradients(alone)
    for name, tensor in gradients(shared).items():
        # Norms are computed in fp32 even here, two of each layer and the last.
        near = sum_tolerance(expected[name], terms=5)
        assert torch.allclose(tensor, expected[name], rtol=0, atol=near), name
    for mine, theirs in zip(shared.forward(datums), alone.forward(datums), strict=True):
        assert np.allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize(("kind", "tied"), [("llama", False), ("qwen2", True), ("qwen3", True)])
def test_the_gradient_is_that_of_transformers(tmp_path, kind, tied):
    from transformers import AutoModelForCausalLM

    mine = decoder(kind, tied)
    save_decoder(mine, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    datums = grouped_batch()
    total = torch.zeros(())
    for datum in datums:
        tokens = torch.from_numpy(datum.tokens)
        logits = theirs(tokens[None]).logits[0, :-1]
        logits = logits / torch.from_numpy(datum.temperatures)[1:, None]
        logprobs = logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
        ratio = (logprobs - torch.from_numpy(datum.logprobs)[1:]).exp()
        total = total - (ratio * torch.from_numpy(datum.advantages)[1:]).sum()
    total.backward()
    it = LocalTrainer(mine)
    metrics = it.forward_backward(datums)
    assert metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-4)
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, tensor in it.gradients().items():
        assert torch.allclose(tensor, expected[name], rtol=1e-3, atol=1e-4), name


def test_recomputing_layers_gives_the_same_gradient():
    datums = grouped_batch()
    plain = LocalTrainer(decoder())
    frugal = LocalTrainer(decoder(), options=TrainerOptions(recompute_layers=True))
    plain.forward_backward(datums)
    frugal.forward_backward(datums)
    expected = gradients(plain)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in frugal.gradients().items())


@pytest.mark.slow
def test_an_adapter_trains_and_comes_back_from_its_files(tmp_path):
    config = LoraConfig(rank=4)
    it = LocalTrainer(decoder(), lora=config)
    datums = grouped_batch()
    first = it.forward_backward(datums, "cross_entropy")["loss:sum"]
    for _ in range(20):
        it.optim_step(2e-2)
        last = it.forward_backward(datums, "cross_entropy")["loss:sum"]
    assert last < 0.8 * first
    save_adapter(it.decoder, config, tmp_path)
    other = decoder()
    load_adapter(other, tmp_path)
    again = LocalTrainer(other, lora=config)
    for mine, theirs in zip(it.forward(datums), again.forward(datums), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_bf16_weights_train(lora):
    it = LocalTrainer(decoder(dtype=torch.bfloat16), lora=lora)
    datums = grouped_batch()
    first = it.forward_backward(datums, "cross_entropy")["loss:sum"]
    for _ in range(20):
        it.optim_step(1e-2)
        last = it.forward_backward(datums, "cross_entropy")["loss:sum"]
    assert last < 0.9 * first
    # Weights stay in their type; what is updated is fp32.
    assert it.decoder.dtype == torch.bfloat16
    assert all(
        tensor.dtype == torch.float32 for key, tensor in it.state_dict().items() if "/" in key
    )


def test_no_logits_of_a_prompt_ever_exist():
    it, seen = LocalTrainer(decoder()), []
    inner = it.decoder.logits
    it.decoder.logits = lambda hidden: (seen.append(len(hidden)), inner(hidden))[1]
    datums = grouped_batch()
    it.forward_backward(datums)
    assert sum(seen) == sum(datum.actions for datum in datums)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_the_same_run_twice_is_the_same_bit_for_bit(lora, threads):
    """What exact resuming rests on: shared prompts, packing and threads leave no room for chance."""

    def run():
        it = LocalTrainer(decoder(), lora=lora, pass_tokens=150)
        for seed in range(3):
            it.forward_backward(grouped_batch(seed), "ppo", {"entropy_coef": 0.01})
            it.optim_step(1e-2, max_grad_norm=1.0)
        return it.decoder.state_dict()

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, second = run(), run()
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_compiled_layers_give_the_same_gradient(monkeypatch, lora):
    """Whatever the shapes of a batch, one code; the backend that leaves the arithmetic as it is, to be quick."""
    made = []

    def backend(graph, _):
        made.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    plain = LocalTrainer(decoder(), lora=lora)
    compiled = LocalTrainer(decoder(), lora=lora, options=TrainerOptions(compile_layers=True))
    for groups, size in ((3, 4), (1, 1), (4, 2)):
        datums = grouped_batch(groups=groups, size=size)
        plain.forward_backward(datums, "ppo")
        compiled.forward_backward(datums, "ppo")
        if groups == 3:
            first = len(made)
    assert len(made) == first > 0
    expected = gradients(plain)
    for name, tensor in gradients(compiled).items():
        assert torch.allclose(tensor, expected[name], rtol=1e-5, atol=1e-4), name
    for mine, theirs in zip(compiled.forward(datums), plain.forward(datums), strict=True):
        assert np.allclose(mine, theirs, atol=1e-6)


def test_layers_that_are_not_ours_are_not_compiled():
    with pytest.raises(UsageError, match="without --compile-layers"):
        LocalTrainer(SmallDecoder(), options=TrainerOptions(compile_layers=True))


@pytest.mark.parametrize(("kind", "tied"), [("llama", False), ("qwen2", True), ("qwen3", True)])
def test_logprobs_are_those_of_transformers(tmp_path, kind, tied):
    from transformers import AutoModelForCausalLM

    mine = decoder(kind, tied)
    save_decoder(mine, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    datums = grouped_batch()
    for datum, found in zip(datums, LocalTrainer(mine).forward(datums), strict=True):
        tokens = torch.from_numpy(datum.tokens)
        with torch.no_grad():
            logits = theirs(tokens[None]).logits[0, :-1]
        logits = logits / torch.from_numpy(datum.temperatures)[1:, None]
        expected = logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0].numpy()
        sampled = datum.mask > 0
        assert np.abs(found[sampled] - expected[sampled[1:]]).max() <= 1e-5


def every_token_counts(datums):
    """The datums as Tinker's client sends them: every token is an action, with an advantage where it was sampled."""
    told = []
    for datum in datums:
        mask = np.ones_like(datum.mask)
        mask[0] = 0
        first = int(np.flatnonzero(datum.mask)[0])
        told.append(replace(datum, mask=mask, prompt_length=first))
    return told


@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dppo", "cross_entropy"])
def test_tokens_without_an_advantage_cost_no_gradient_and_keep_their_logprobs(
    monkeypatch, loss, share, tempered
):
    datums = grouped_batch()
    if not tempered:
        datums = [replace(one, temperatures=np.ones_like(one.temperatures)) for one in datums]
    told = every_token_counts(datums)
    monkeypatch.setattr(ReferenceDecoder, "shares_prefixes", share)
    alone, both = (LocalTrainer(decoder(dtype=torch.float64)) for _ in range(2))
    expected = alone.forward_backward(datums, loss)
    found = both.forward_backward(told, loss)
    assert found["loss:sum"] == pytest.approx(expected["loss:sum"], rel=1e-9)
    for name, gradient in gradients(alone).items():
        assert torch.allclose(gradient, gradients(both)[name], rtol=1e-9, atol=1e-12), name
    for mine, theirs in zip(both.last_logprobs, both.forward(told), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
        assert (mine[1:] < 0).all()


def test_losses_with_a_gradient_of_every_token_compute_it():
    datums, loss = every_token_counts(grouped_batch()), {"beta": 0.5}
    whole, chunked = (LocalTrainer(decoder(dtype=torch.float64)) for _ in range(2))
    whole.forward_backward(datums, "dro", loss)
    reference = LocalTrainer(decoder(dtype=torch.float64))
    logprobs = reference.forward(datums)
    # d/dlp of -(lp A - beta/2 (lp - q)^2)
    pulls = [
        datum.mask * (datum.advantages - loss["beta"] * (row - datum.logprobs))
        for datum, row in zip(datums, logprobs, strict=True)
    ]
    chunked.backward(datums, pulls)
    for name, gradient in gradients(whole).items():
        assert torch.allclose(gradient, gradients(chunked)[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_alone_are_those_of_all(monkeypatch, recomputed, compiled):
    """The last layer computes what is asked for, in its order, and what is asked for twice twice."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    options = TrainerOptions(recompute_layers=recomputed, compile_layers=compiled)
    it = LocalTrainer(decoder(dtype=torch.float64), options=options).decoder
    ids, places = torch.arange(12), torch.arange(6).repeat(2)
    rows = torch.tensor([7, 2, 2, 11])
    for prefixes in (None, torch.tensor([-1, 0])):
        whole = it.hidden_packed(ids, places, torch.tensor([0, 6, 12]), prefixes)
        some = it.hidden_packed(ids, places, torch.tensor([0, 6, 12]), prefixes, rows)
        assert torch.allclose(some, whole[rows], rtol=1e-6)
        parameters = list(it.parameters())
        weights = torch.linspace(-1, 1, whole.shape[1], dtype=torch.float64)
        expected = torch.autograd.grad((whole[rows].sin() * weights).sum(), parameters)
        found = torch.autograd.grad((some.sin() * weights).sum(), parameters)
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)
