"""TITLE: a task template and its grader, with no tools.

Try it:   hud eval FOLDER/tasks.py FOLDER/agent.py --all
"""

from hud import Environment

env = Environment("NAME")


@env.template(id="count", description="Count a letter in a word.")
async def count(word: str, letter: str):
    answer = yield f"How many times is {letter!r} in {word!r}? Answer with a number."
    yield float(answer.strip() == str(word.count(letter)))
