"""Default learning rates by size, and by adapter or full fine-tuning."""

import pytest

from hud.train.planning.default_rates import rates_by_size


@pytest.mark.parametrize(
    ("parameters", "reward", "supervised", "pairs"),
    [
        (None, 1e-4, 1e-3, 1e-5),
        (1_000_000, 1e-4, 1e-3, 1e-5),
        (134_515_008, 1e-4, 1e-3, 1e-5),
        (8_030_000_000, 3.6e-5, 3.6e-4, 3.6e-6),
        (70_600_000_000, 2.1e-5, 2.1e-4, 2.1e-6),
    ],
)
def test_adapters_fall_with_the_size_and_have_ten_times_the_rate(
    parameters, reward, supervised, pairs
):
    lora, full = (rates_by_size(parameters, lora=lora) for lora in (True, False))
    assert (lora.reward, lora.supervised, lora.pairs) == pytest.approx((reward, supervised, pairs))
    assert full.reward == pytest.approx(reward / 10)
    assert full.of("cross_entropy") == pytest.approx(supervised / 10)
    assert full.of("dpo") == full.of("bradley_terry") == pytest.approx(pairs / 10)


def test_the_note_names_the_size():
    rates = rates_by_size(8_030_000_000, lora=True)
    assert rates.note(rates.reward) == (
        "Learning rate 3.6e-05, the default for an adapter of 8.03B parameters; --lr sets another."
    )
