"""The product of a sweep's values, and what cannot be swept."""

import pytest

from hud.errors import UsageError
from hud.train.config import make_config
from hud.train.supervised.config import make_supervised_config
from hud.train.sweeps.combinations import combinations

BASE = {"model": "m", "tasks": "tasks.py", "held_out": ["held.py"]}


def test_every_combination_is_made_with_values_of_their_types():
    axes = {
        "lr": ["1e-5", "3e-5"],
        "curriculum": ["uniform", "signal"],
        "loss_config.kl_coef": [0, "0.1"],
    }
    every = combinations(make_config, BASE, axes)
    assert len(every) == 8
    first, last = every[0], every[-1]
    assert first.label == "lr=1e-05 curriculum=uniform loss_config.kl_coef=0"
    assert (last.config.lr, last.config.curriculum) == (3e-5, "signal")
    assert (first.config.loss_config, last.config.loss_config) == (
        {"kl_coef": 0.0},
        {"kl_coef": 0.1},
    )
    assert all(combination.config.model == "m" for combination in every)


def test_defaults_follow_the_swept_value():
    every = combinations(make_config, BASE, {"max_lag": ["0", "2"]})
    assert [combination.config.loss for combination in every] == ["importance_sampling", "ppo"]


def test_a_setting_is_the_combination_without_its_seed():
    every = combinations(make_config, BASE, {"lr": ["1", "2"], "seed": ["0", "1"]})
    assert [combination.setting for combination in every] == ["lr=1", "lr=1", "lr=2", "lr=2"]


def test_settings_of_supervised_training_are_swept_too():
    every = combinations(make_supervised_config, {"model": "m"}, {"epochs": ["1", "3"]})
    assert [combination.config.epochs for combination in every] == [1, 3]


@pytest.mark.parametrize(
    ("axes", "settings", "sentence"),
    [
        ({"lr": ["1e-5"]}, {}, "The sweep of lr has one value"),
        ({"learnrate": ["1", "2"]}, {}, "There is no setting 'learnrate' to sweep; "),
        ({"tasks": ["a", "b"]}, {}, "tasks is neither a number nor a choice"),
        ({"promote": ["always", "gate"]}, {}, "promote is neither a number nor a choice"),
        ({"lr": ["fast", "slow"]}, {}, "lr: Input should be a valid number"),
        ({"group": ["4", "4.5"]}, {}, "group: Input should be a valid integer"),
        ({"curriculum": ["uniform", "best"]}, {}, "curriculum: Input should be 'uniform' or"),
        ({"loss": ["ppo", "pppo"]}, {}, "There is no loss 'pppo'"),
        ({"loss_config.kl": ["1", "2"]}, {}, "takes no key 'kl'"),
        ({"lr": ["0.01", "1e-2"]}, {}, "The sweep has lr=0.01 twice"),
        ({"lr": ["1", "2"]}, {"lr": 1.0}, "lr is both fixed and swept"),
        ({"lr": ["1", "2"]}, {"promote": "gate"}, "cannot share promote"),
        ({"lr": ["1", "2"]}, {"plot": "a.png"}, "cannot share plot"),
    ],
)
def test_what_cannot_be_swept_is_one_sentence(axes, settings, sentence):
    with pytest.raises(UsageError) as refused:
        combinations(make_config, BASE | settings, axes)
    assert sentence in str(refused.value)
