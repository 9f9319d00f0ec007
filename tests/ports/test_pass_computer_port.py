"""The conformance suite of `hud.engine.learn.pass_computer.PassComputer`."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from tests.engine.learn.small_decoder import random_datum
from tests.ports.decoders import DECODERS, VOCABULARY, packed_logprobs

from hud.engine.cpu_threads import in_parallel
from hud.engine.learn.packed_pass import lay_out, places_of
from hud.engine.learn.training_pass import PlainPasses
from hud.learning.losses.config import parse_loss
from hud_kernels.cpu.backend import CpuBackend
from hud_kernels.cuda.backend import CudaBackend

CLOSE = {"atol": 2e-4, "rtol": 2e-3}
IMPLEMENTATIONS = {
    "plain": (PlainPasses, "reference", "cpu"),
    "plain over transformers": (PlainPasses, "transformers", "cpu"),
    "plain over a hybrid": (PlainPasses, "hybrid", "cpu"),
    "CPU kernels": (CpuBackend().pass_computer, "reference", "cpu"),
    "plain on a GPU": (PlainPasses, "reference", "cuda"),
    "CUDA kernels": (CudaBackend().pass_computer, "reference", "cuda"),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    """Return a decoder and the computer of its passes."""
    make, decoder, device = IMPLEMENTATIONS[request.param]
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    made = DECODERS[decoder]().to(device).requires_grad_(True)
    return made, make(made)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"], autouse=True)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)  # Kernels may be for one thread.
    yield
    torch.set_num_threads(before)


def datums():
    """Datums of which the last three form a tree with branches of branches."""
    rng = np.random.default_rng(0)
    made = [
        random_datum(rng, vocab=VOCABULARY, length=length, temperature=temperature)
        for length, temperature in ((30, 1.0), (7, 1.0), (44, 0.8), (40, 1.0), (44, 0.8))
    ]
    for number, shared in ((3, 18), (4, 37)):
        made[number].tokens[:shared] = made[2].tokens[:shared]
    return made


EVERY = tuple(range(5))


def layout(decoder, members=EVERY):
    places = places_of(datums(), members, share=decoder.shares_prefixes)
    return lay_out(datums(), places, decoder.device)


def expected(decoder, batch):
    """Return the logprobs of all sampled tokens, each datum by itself."""
    parts = []
    for datum in (datums()[number] for number in batch.datums):
        rows = packed_logprobs(decoder, datum.tokens.tolist())
        places = np.flatnonzero(datum.mask)
        rows = (rows[places - 1] / datum.temperatures[0].item()).log_softmax(-1)
        targets = torch.from_numpy(datum.tokens[places]).to(rows.device)
        parts.append(rows.gather(-1, targets[:, None])[:, 0])
    return torch.cat(parts)


@pytest.mark.slow
def test_logprobs_are_those_of_each_sequence_by_itself(implementation):
    decoder, computer = implementation
    batch = layout(decoder)
    result = computer.logprobs(batch)
    torch.testing.assert_close(result.logprobs, expected(decoder, batch), **CLOSE)
    assert result.gradients is None
    assert not result.logprobs.requires_grad


def test_likeliest_tokens_are_those_of_each_sequence_by_itself(implementation):
    decoder, computer = implementation
    batch = layout(decoder)
    result = computer.logprobs(batch, top=3)
    predictions = (
        torch.arange(len(batch.predicts)) if batch.prediction is None else batch.prediction
    )
    tokens, logprobs = result.top_tokens[predictions], result.top_logprobs[predictions]
    parts = []
    for datum in (datums()[number] for number in batch.datums):
        rows = packed_logprobs(decoder, datum.tokens.tolist())
        places = np.flatnonzero(datum.mask)
        parts.append((rows[places - 1] / datum.temperatures[0].item()).log_softmax(-1))
    rows = torch.cat(parts)
    torch.testing.assert_close(logprobs[:, :3], rows.topk(3).values, **CLOSE)
    torch.testing.assert_close(logprobs[:, :3], rows.gather(-1, tokens), **CLOSE)
    one = torch.ones(len(rows), device=rows.device)
    torch.testing.assert_close(logprobs.exp().sum(-1), one, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling", "ppo"])
def test_gradients_are_the_derivatives_of_the_loss(implementation, loss):
    """Compared with autograd's through the plain pass in fp64, without shared prefixes."""
    decoder, computer = implementation
    batch, parsed = layout(decoder), parse_loss(loss, None)
    result = computer.gradient(batch, parsed)
    torch.testing.assert_close(result.logprobs, expected(decoder, batch), **CLOSE)
    exact = deepcopy(decoder).double()
    exact.zero_grad()
    wide = lay_out(datums(), places_of(datums(), EVERY, share=False), decoder.device, torch.float64)
    PlainPasses(exact).gradient(wide, parsed)
    for (name, parameter), other in zip(
        decoder.named_parameters(), exact.parameters(), strict=True
    ):
        error = (parameter.grad.double() - other.grad).norm()
        assert error <= 1e-3 * other.grad.norm() + 1e-5, name


def test_returned_gradients_are_those_that_are_accumulated(implementation):
    decoder, computer = implementation
    batch, loss = layout(decoder), parse_loss("ppo", None)
    trained = list(decoder.parameters())
    returned = computer.gradient(batch, loss, trained=trained)
    assert all(parameter.grad is None for parameter in trained)
    accumulated = computer.gradient(batch, loss)
    assert accumulated.gradients is None
    assert accumulated.sums == pytest.approx(returned.sums, rel=1e-4, abs=1e-6)
    for parameter, gradient in zip(trained, returned.gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, **CLOSE)


@pytest.mark.slow
def test_gradients_of_several_passes_are_summed(implementation):
    decoder, computer = implementation
    loss = parse_loss("cross_entropy", None)
    computer.gradient(layout(decoder), loss)
    together = [parameter.grad.clone() for parameter in decoder.parameters()]
    decoder.zero_grad()
    for member in EVERY:
        computer.gradient(layout(decoder, [member]), loss)
    for gradient, parameter in zip(together, decoder.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, **CLOSE)


def test_a_pass_without_datums_adds_zeros(implementation):
    decoder, computer = implementation
    result = computer.gradient(layout(decoder, []), parse_loss("cross_entropy", None))
    assert result.sums == {}
    assert all(
        parameter.grad is None or not parameter.grad.any() for parameter in decoder.parameters()
    )


def test_changed_weights_count_in_the_next_pass(implementation):
    decoder, computer = implementation
    computer.logprobs(layout(decoder))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(0.8)
    batch = layout(decoder)
    result = computer.logprobs(batch)
    torch.testing.assert_close(result.logprobs, expected(decoder, batch), **CLOSE)


def test_threads_compute_at_the_same_time(implementation):
    decoder, computer = implementation
    if not decoder.config.ours:
        pytest.skip("the trainer computes passes of this decoder one after the other")
    loss, trained = parse_loss("ppo", None), list(decoder.parameters())
    works = [
        lambda member=member: computer.gradient(layout(decoder, [member]), loss, trained=trained)
        for member in (0, 1, 2, 0)
    ]
    first, *_, again = in_parallel(works)
    for one, other in zip(first.gradients, again.gradients, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
