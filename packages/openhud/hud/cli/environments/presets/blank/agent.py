"""A scripted agent that solves TITLE: the proof that the tasks can be done.

Put a model in its place:   hud eval FOLDER/tasks.py SLUG --all
"""

import re


async def agent(run):
    """Read the letter and the word from the prompt, and count."""
    letter, word = re.findall(r"'(\w+)'", run.prompt_text)
    return str(word.count(letter))
