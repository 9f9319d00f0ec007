"""A comparison that stops once it is certain: the tasks that it plays, on both sides the same."""

from tests.train.test_client_training import home

from hud import Environment
from hud.eval import Taskset
from hud.train.config import make_config
from hud.train.promotion.checkpoint_comparison import compare, play_both

__all__ = ["home"]

env = Environment("lengths")


@env.template()
async def write(number: int):
    answer = yield f"say {number}"
    yield float(len(answer) > 8)


tasks = Taskset("lengths", [write(number=number) for number in range(30)])


def config(max_tokens):
    return make_config({"model": "m", "max_tokens": max_tokens, "max_turns": 1})


async def test_a_clear_difference_ends_after_some_parts_of_five(home):
    """Ten tasks are the fewest, with a difference of 1: their capital is 1.5 to the tenth, above 40."""
    sides = [(config(1), "head"), (config(32), "head")]
    jobs = await play_both(sides, tasks, until_certain=True)
    played = [{run.slug for run in job.runs} for job in jobs]
    assert played[0] == played[1]
    count = len(played[0])
    assert count in (10, 15, 20)
    assert played[0] != {task.slug for task in list(tasks)[:count]}, "in random order"
    assert jobs[0].reward == 0.0 < jobs[1].reward


async def test_equal_sides_play_everything(home):
    comparison = await compare(config(1), "head", "head", tasks, runtime=None, until_certain=True)
    assert (comparison.difference.tasks, comparison.verdict) == (30, "no difference")
    low, high = comparison.anytime
    assert low < 0 < high
