"""Datums that begin alike are computed as a tree, and train as they do each by itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.learn.test_trainer_decoder import VOCABULARY, decoder, gradients
from tests.engine.rounding import sum_tolerance

from hud.engine.config import DecoderConfig
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.training_pass import PlainPasses
from hud.engine.lora import LoraConfig
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.learning.datums import Datum
from hud.learning.losses.formulas import LOSSES


def random_tree(rng, depth, branches, lengths):
    """Return the token sequences of the leaves: every node continues its parent by a segment of its own."""
    segment = rng.integers(0, VOCABULARY, int(rng.integers(*lengths)))
    if depth == 0:
        return [segment]
    return [
        np.concatenate([segment, rest])
        for _ in range(int(rng.integers(*branches)))
        for rest in random_tree(rng, depth - 1, branches, lengths)
    ]


def random_datums(rng, sequences, prompt=3):
    """Return datums of sequences, whose actions lie anywhere behind the prompt, shared tokens included."""
    datums = []
    for number in rng.permutation(len(sequences)):
        tokens = sequences[number]
        mask = (rng.random(len(tokens)) < 0.5).astype(np.float32)
        mask[:prompt], mask[-1] = 0, 1
        drawn = rng.normal(size=(3, len(tokens))).astype(np.float32)
        datums.append(
            Datum(
                tokens=tokens,
                mask=mask,
                logprobs=mask * (drawn[0] * np.float32(0.3) - 4),
                # Of some tokens 0, whose logprobs are computed without gradient.
                advantages=mask * drawn[1] * (drawn[1] > -0.5),
                weights=mask * drawn[2],
                temperatures=np.full(len(tokens), rng.choice([1.0, 0.8]), np.float32),
                traj_idx=len(datums),
                group_idx=0,
            )
        )
    return datums


def depth_three(seed=0, lengths=(20, 30)):
    """Return the datums of a tree of depth 3 with eight leaves."""
    rng = np.random.default_rng(seed)
    return random_datums(rng, random_tree(rng, 3, (2, 3), lengths))


def trainers(make, lora=None, **options):
    """Return a trainer that computes common beginnings once, and one that does not."""
    shared, alone = (LocalTrainer(make(), lora=lora, **options) for _ in range(2))
    if lora is not None:
        for trainer in (shared, alone):
            adapt(trainer.decoder)
    alone.decoder.shares_prefixes = False
    return shared, alone


@torch.no_grad()
def adapt(model):
    """Give adapters random weights: new ones add nothing."""
    generator = torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


def check_equal(shared, alone, datums, loss="ppo", config=None, terms=8):
    """Compare metrics, logprobs and gradients of both."""
    fewer = shared.forward_backward(datums, loss, config)
    more = alone.forward_backward(datums, loss, config)
    assert fewer["tokens:sum"] + fewer["shared_tokens:sum"] == more["tokens:sum"]
    assert more["shared_tokens:sum"] == 0
    for name in fewer.keys() - {"tokens:sum", "shared_tokens:sum", "passes:sum"}:
        assert fewer[name] == pytest.approx(more[name], rel=1e-4, abs=1e-5), name
    for together, one in zip(shared.last_logprobs, alone.last_logprobs, strict=True):
        assert together == pytest.approx(one, abs=1e-5)
    expected = gradients(alone)
    largest = max(tensor.abs().max() for tensor in expected.values())
    for name, tensor in gradients(shared).items():
        near = sum_tolerance(expected[name], terms=terms) + 1e-6 * float(largest)
        assert torch.allclose(tensor, expected[name], rtol=0, atol=near), name
    return fewer


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    depth=st.integers(1, 4),
    trees=st.integers(1, 2),
    loss=st.sampled_from(sorted(LOSSES)),
    lora=st.booleans(),
    budget=st.sampled_from([60, 200, 10_000]),
    longest=st.sampled_from([20, 40]),
)
def test_random_trees_have_the_gradient_of_the_unshared_batch(
    seed, depth, trees, loss, lora, budget, longest
):
    rng = np.random.default_rng(seed)
    sequences = [
        leaf for _ in range(trees) for leaf in random_tree(rng, depth, (1, 4), (4, longest))
    ][:16]
    sequences.append(sequences[0][: len(sequences[0]) // 2 + 4])
    config = {} if loss == "cross_entropy" else {"entropy_coef": 0.1 * (seed % 2)}
    adapter = LoraConfig(rank=2) if lora else None
    if lora and loss != "cross_entropy":
        config |= {"kl_coef": 0.1, "tis_token_cap": 2.0}
    shared, alone = trainers(lambda: decoder(dtype=torch.float64), adapter, pass_tokens=budget)
    check_equal(shared, alone, random_datums(rng, sequences), loss, config)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_tree_of_depth_three_computes_each_segment_once(kind, lora):
    shared, alone = trainers(lambda: decoder(kind, dtype=torch.float64), lora)
    datums = depth_three()
    metrics = check_equal(shared, alone, datums)
    segments = {
        datum.tokens[:end].tobytes() for datum in datums for end in range(len(datum.tokens))
    }
    assert metrics["tokens:sum"] == len(segments) - 1
    assert metrics["shared_tokens:sum"] > metrics["tokens:sum"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("plain", [False, True], ids=["kernels", "plain"])
def test_single_precision_has_the_same_gradient_on_every_path(threads, plain):
    """With heads of 16 numbers, which compiled code computes on one thread."""

    def make():
        torch.manual_seed(0)
        shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        made = ReferenceDecoder(
            DecoderConfig("qwen3", VOCABULARY, 32, 48, num_hidden_layers=2, **shape)
        )
        for parameter in made.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        return made

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shared, alone = trainers(make)
        if plain:
            for trainer in (shared, alone):
                trainer._computer = PlainPasses(trainer.decoder)
        check_equal(shared, alone, depth_three(), terms=500)
        # Lengths that are not padded together.
        check_equal(shared, alone, depth_three(1, (1, 60)), terms=500)
    finally:
        torch.set_num_threads(before)


def test_a_shared_action_counts_with_each_datums_own_advantage():
    tokens = np.arange(60) % 40
    mask = np.zeros(60, np.float32)
    mask[30:] = 1

    def datum(advantage, tail):
        own = tokens.copy()
        own[35:] = tail
        return Datum(
            tokens=own,
            mask=mask,
            logprobs=mask * np.float32(-4),
            advantages=mask * np.float32(advantage),
            weights=mask,
            temperatures=np.ones(60, np.float32),
            traj_idx=0,
        )

    datums = [datum(1.0, 41), datum(-0.25, 42), datum(-0.75, 42)]
    shared, alone = trainers(lambda: decoder(dtype=torch.float64))
    seen = []
    inner = shared.decoder.logits
    shared.decoder.logits = lambda hidden: (seen.append(len(hidden)), inner(hidden))[1]
    metrics = check_equal(shared, alone, datums, "importance_sampling")
    assert metrics["action_tokens:sum"] == 90
    # Five actions are all datums', 25 the first's, 25 the last two's.
    assert seen == [55]
