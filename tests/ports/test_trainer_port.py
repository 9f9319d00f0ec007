"""The conformance suite of `hud.engine.trainer.Trainer`."""

import numpy as np
import pytest
from tests.engine.random_decoder import random_decoder
from tests.ports.decoders import packed_logprobs
from tests.ports.trainers import TRAINERS

from hud.errors import ConflictError, UsageError
from hud.learning.datums import Datum
from hud_integrations.tinker.backend.trainer import TinkerTrainer

CLOSE = {"atol": 2e-4, "rtol": 0}


@pytest.fixture(params=TRAINERS)
def trainer(request, tmp_path, monkeypatch):
    with TRAINERS[request.param](tmp_path, monkeypatch) as opened:
        yield opened


def datum(seed, length=12, sampled=5):
    rng = np.random.default_rng(seed)
    mask = np.zeros(length, np.float32)
    mask[-sampled:] = 1
    return Datum(
        tokens=rng.integers(0, 60, length),
        mask=mask,
        logprobs=(mask * rng.normal(-4, 0.3, length)).astype(np.float32),
        advantages=mask * np.float32(rng.normal()),
        weights=mask,
        temperatures=np.ones_like(mask),
        traj_idx=seed,
    )


DATUMS = [datum(seed, 10 + seed, 3 + seed % 4) for seed in range(4)]


def computed(trainer):
    return np.concatenate(trainer.forward(DATUMS))


def test_logprobs_are_those_of_the_weights_and_zero_outside_the_mask(trainer):
    decoder = random_decoder()  # Adapters begin without an effect.
    for sample, logprobs in zip(DATUMS, trainer.forward(DATUMS), strict=True):
        assert logprobs.shape == sample.tokens.shape
        assert logprobs.dtype == np.float32
        places = np.flatnonzero(sample.mask)
        rows = packed_logprobs(decoder, sample.tokens.tolist())[places - 1]
        expected = rows[range(len(places)), sample.tokens[places]].numpy()
        np.testing.assert_allclose(logprobs[places], expected, **CLOSE)
        assert not logprobs[sample.mask == 0].any()


def test_a_pass_measures_and_is_pending_until_the_step(trainer):
    assert not trainer.pending
    metrics = trainer.forward_backward(DATUMS, "importance_sampling")
    assert metrics["action_tokens:sum"] == sum(sample.actions for sample in DATUMS)
    assert np.isfinite(metrics["loss:sum"])
    assert trainer.pending
    for last, logprobs in zip(trainer.last_logprobs, trainer.forward(DATUMS), strict=True):
        np.testing.assert_allclose(last, logprobs, **CLOSE)
    assert all(np.isfinite(value) for value in trainer.optim_step(1e-3).values())
    assert not trainer.pending


def test_steps_raise_the_likelihood_of_what_is_learned(trainer):
    before = computed(trainer).sum()
    for _ in range(5):
        trainer.forward_backward(DATUMS, "cross_entropy")
        trainer.optim_step(1e-2)
    assert computed(trainer).sum() > before + 1


@pytest.mark.parametrize("kind", TRAINERS)
def test_accumulated_parts_step_as_the_whole_does(kind, tmp_path, monkeypatch):
    results = []
    for number, parts in enumerate(([DATUMS], [DATUMS[:1], DATUMS[1:]])):
        folder = tmp_path / str(number)
        folder.mkdir()
        with TRAINERS[kind](folder, monkeypatch) as opened:
            for part in parts:
                opened.forward_backward(part, "ppo", num_substeps=len(parts))
            opened.optim_step(1e-2)
            results.append(computed(opened))
    np.testing.assert_allclose(*results, atol=2e-3)


@pytest.mark.parametrize("kind", TRAINERS)
def test_backward_steps_along_the_callers_own_derivatives(kind, tmp_path, monkeypatch):
    results = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        with TRAINERS[kind](folder, monkeypatch) as opened:
            if number:
                metrics = opened.backward(DATUMS, [np.ones_like(one.mask) for one in DATUMS])
                outside = sum(int((sample.mask == 0).sum()) for sample in DATUMS)
                assert metrics["ignored_weights:sum"] == outside
            else:
                opened.forward_backward(DATUMS, "cross_entropy")
            opened.optim_step(1e-2)
            results.append(computed(opened))
    np.testing.assert_allclose(*results, atol=2e-3)


def test_wrong_calls_are_refused_and_change_nothing(trainer):
    before = computed(trainer)
    with pytest.raises(ConflictError, match="Nothing was accumulated"):
        trainer.optim_step(1e-2)
    with pytest.raises(UsageError):
        trainer.forward_backward(DATUMS, "no such loss")
    with pytest.raises(UsageError):
        trainer.backward(DATUMS, [np.full_like(one.mask, np.nan) for one in DATUMS])
    with pytest.raises(UsageError):
        trainer.backward(DATUMS, [np.ones(2, np.float32) for _ in DATUMS])
    with pytest.raises(UsageError):
        trainer.load_state_dict({})
    np.testing.assert_array_equal(computed(trainer), before)


@pytest.mark.parametrize("drop", ["zero_grad", "reset", "load_state_dict"])
def test_what_was_accumulated_can_be_dropped(trainer, drop):
    state = trainer.state_dict()
    trainer.forward_backward(DATUMS, "cross_entropy")
    if drop == "load_state_dict":
        trainer.load_state_dict(state)
    else:
        getattr(trainer, drop)()
    assert not trainer.pending
    with pytest.raises(ConflictError):
        trainer.optim_step(1e-2)


def test_terms_of_a_reference_are_computed_or_refused(trainer):
    loaded = []

    def load():
        loaded.append(random_decoder())
        return loaded[-1]

    for _ in range(2):
        trainer.take_reference(load)
    assert len(loaded) <= 1
    options = {"kl_coef": 0.1}
    if isinstance(trainer, TinkerTrainer):
        with pytest.raises(UsageError, match="kl_coef"):
            trainer.forward_backward(DATUMS, "importance_sampling", options)
    else:
        metrics = trainer.forward_backward(DATUMS, "importance_sampling", options)
        assert metrics["reference_kl:mean"] == pytest.approx(0, abs=1e-3)


def test_a_policy_is_written_for_samplers(trainer, tmp_path):
    (tmp_path / "base").mkdir()
    whole = trainer.save_policy(tmp_path / "made", base=tmp_path / "base", name="000001-abc")
    assert whole == (tmp_path / "made" / "config.json").exists()
    assert any((tmp_path / "made").iterdir())
