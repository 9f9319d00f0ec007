"""What a job's tasks can teach: spread, groups without signal, gradient weight, duplicates, the curriculum."""

from statistics import variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.eval.results.run_summary import RunSummary
from hud.eval.results.task_signal import job_signal, near_duplicates

LONG = "Find the invoice of the customer who complained on Tuesday and refund the shipping costs to the card"


def runs(**groups):
    """Runs of tasks: slug to groups of rewards."""
    return [
        RunSummary(slug, reward, group_id=f"{slug}{number}", attempt=attempt)
        for slug, of in groups.items()
        for number, group in enumerate(of)
        for attempt, reward in enumerate(group)
    ]


def by_slug(found):
    return {task.slug: task for task in found.tasks}


def test_a_task_between_never_and_always_carries_the_gradient():
    played = runs(
        half=[[0, 1, 0, 1], [1, 1, 0, 0]],
        never=[[0] * 4, [0] * 4],
        always=[[1] * 4],
        some=[[0, 0, 0, 1]],
    )
    found = job_signal(played, {})
    task = by_slug(found)
    assert found.k == 4
    assert [one.slug for one in found.tasks][:2] == ["half", "some"]
    assert (task["half"].deviation, task["half"].pass_at_1) == (0.5, 0.5)
    assert task["half"].pass_at_k == pytest.approx(1 - 1 / 70)
    assert (task["never"].groups, task["never"].without_signal, task["never"].weight) == (2, 2, 0)
    assert task["half"].empty == pytest.approx(2 / 16)
    assert found.without_signal == pytest.approx(3 / 6)
    assert found.curriculum == {
        "now": ["half", "some"], "later": ["never"], "done": ["always"], "duplicate": [],
    }  # fmt: skip


def test_what_was_not_measured_enters_nothing_and_alone_it_is_an_error():
    lost = [RunSummary("lost", None, failure_kind="environment")]
    found = job_signal([*runs(a=[[0, 1]]), *lost], {})
    assert [task.slug for task in found.tasks] == ["a"]
    with pytest.raises(UsageError, match="No run of this job was measured"):
        job_signal(lost, {})


def test_one_run_of_each_task_says_nothing_of_signal():
    found = job_signal(runs(a=[[0.5]], b=[[1]]), {})
    assert (found.k, found.without_signal) == (2, 1.0)
    assert all(task.pass_at_k is None and task.weight == 0 for task in found.tasks)


def test_a_larger_group_finds_signal_in_a_harder_task():
    played = runs(hard=[[0] * 15 + [1]])
    assert job_signal(played, {}, k=4).tasks[0].stage == "later"
    assert job_signal(played, {}, k=64).tasks[0].stage == "now"


def test_near_duplicates_are_told_by_template_and_text():
    def row(text, template="do"):
        return {"env": "e", "id": template, "args": {"text": text}}

    found = near_duplicates(
        {
            "first": row(LONG),
            "again": row(LONG.upper().replace("THE ", "the  ")),
            "word": row(LONG.replace("Tuesday", "Monday")),
            "other": row(LONG, template="check"),
            "numbered": row(LONG + ", 17 euros"),
            "renumbered": row(LONG + ", 18 euros"),
            "short": row("2 + 3"),
            "shorter": row("2 + 4"),
            "bare": {},
        }
    )
    assert found == {"again": "first", "word": "first"}


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=3),
        min_size=1,
    )
)
def test_shares_are_shares_and_every_task_has_one_stage(groups):
    found = job_signal(runs(**groups), {})
    assert sum(task.weight for task in found.tasks) == pytest.approx(
        1 if any(task.deviation for task in found.tasks) else 0
    )
    for task in found.tasks:
        earned = [reward for group in groups[task.slug] for reward in group]
        assert 0 <= task.empty <= 1
        assert 0 <= task.pass_at_1 <= 1
        assert (task.weight > 0) == (len(earned) > 1 and variance(earned) > 0)
        assert task.without_signal <= task.groups
    assert sorted(slug for of in found.curriculum.values() for slug in of) == sorted(groups)


def test_rewards_of_turns_are_signal_where_runs_earn_the_same():
    """Turns that earn differently at equal sums; runs of other lengths are compared at the turns that both have."""

    def group(task, *turns):
        return [
            RunSummary(task, 0.5, group_id=task, attempt=place, turn_rewards=rewards)
            for place, rewards in enumerate(turns)
        ]

    played = [
        *group("early", (1.0, 0.0), (0.0, 1.0)),
        *group("equal", (0.5, 0.5), (0.5, 0.5)),
        *group("longer", (1.0,), (1.0, 0.0)),
        *group("silent", None, None),
    ]
    tasks = by_slug(job_signal(played, {}))
    assert {name: task.without_signal for name, task in tasks.items()} == {
        "early": 0,
        "equal": 1,
        "longer": 1,
        "silent": 1,
    }
    assert {name for name, task in tasks.items() if task.stage == "now"} == {"early"}
