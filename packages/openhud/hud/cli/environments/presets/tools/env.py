"""TITLE: a tool, a task template and a grader.

Try it:   hud eval FOLDER/tasks.py FOLDER/agent.py --all
"""

from hud import Environment
from hud.graders import numeric_match

env = Environment("NAME")

PRICES = {"apple": 3, "bread": 4, "cheese": 7}


@env.tool
def price_of(item: str) -> int:
    """The price of an item."""
    return PRICES[item]


@env.template(id="shopping", description="Find out what a shopping list costs.")
async def shopping(items: list[str]):
    answer = yield f"What do these cost together: {', '.join(items)}? Answer with a number."
    yield float(numeric_match(answer, sum(PRICES[item] for item in items)))
