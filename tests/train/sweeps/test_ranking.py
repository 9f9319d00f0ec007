"""The best combination of a sweep is named with evidence only."""

import random

from hud.train.sweeps.ranking import Trained, rank

TASKS = [f"task-{number}" for number in range(12)]


def trained(label, mean, *, seed=0, base=0.2, setting=None, runs=4):
    """A combination whose runs succeed with probability `mean`."""
    draw = random.Random(f"{label} {seed}")
    before = {task: [float(draw.random() < base) for _ in range(runs)] for task in TASKS}
    after = {task: [float(draw.random() < mean) for _ in range(runs)] for task in TASKS}
    return Trained(label, label if setting is None else setting, before, after, seed)


def test_a_clear_winner_is_named():
    ranking = rank([trained("lr=1", 0.3), trained("lr=2", 0.95), trained("lr=3", 0.4)])
    assert ranking.best == "lr=2"
    assert ranking.verdict.startswith("lr=2 is the best: +")


def test_equal_combinations_have_no_winner():
    ranking = rank([trained("lr=1", 0.6), trained("lr=2", 0.62)])
    assert ranking.best is None
    assert "No combination is named best" in ranking.verdict
    assert "To tell it from 0" in ranking.verdict


def test_the_best_of_combinations_that_lose_to_the_base_is_not_named():
    rows = [trained("lr=1", 0.05, base=0.9), trained("lr=2", 0.6, base=0.9)]
    ranking = rank(rows)
    assert ranking.best is None
    assert "over the base" in ranking.verdict


def test_at_most_one_of_twenty_sweeps_without_a_difference_names_a_winner():
    named = sum(
        rank([trained(f"lr={which}", 0.5, base=0.5, seed=seed) for which in range(4)]).best
        is not None
        for seed in range(400)
    )
    assert named <= 400 * 0.05


def test_seeds_are_repetitions_of_one_setting():
    rows = [
        trained(f"lr={lr} seed={seed}", mean, setting=f"lr={lr}", seed=seed)
        for lr, mean in ((1, 0.3), (2, 0.9))
        for seed in range(3)
    ]
    best = rank(rows).best
    assert best is not None
    assert best.startswith("lr=2 seed=")
    # A setting that leads by two seeds alone is no evidence for a third one.
    rows[-1] = trained("lr=2 seed=2", 0.05, setting="lr=2", seed=2)
    assert rank(rows).best is None


def test_no_seed_is_the_best():
    ranking = rank([trained(f"seed={seed}", 0.5, setting="", seed=seed) for seed in range(3)])
    assert ranking.best is None
    assert ranking.verdict.startswith("3 seeds: held-out mean 0.")


def test_too_few_tasks_have_no_winner():
    few = {task: [1.0] for task in TASKS[:3]}
    none = {task: [0.0] for task in TASKS[:3]}
    ranking = rank([Trained("lr=1", "lr=1", none, none), Trained("lr=2", "lr=2", none, few)])
    assert ranking.best is None
