"""A toy task with signal for a random model: the reward is the share of different letters in the answer."""

from hud import Environment

env = Environment("letters")


@env.tool
def spell(word: str, times: int = 1) -> str:
    """Spell a word.

    Args:
        word: Word to spell.
        times: How often.
    """
    return " ".join([*word] * times)


@env.template()
async def different(word: str):
    answer = yield f"Write {word} with different letters."
    yield len(set(answer)) / max(len(answer), 1)


@env.template()
async def vowels(word: str):
    answer = yield f"Write {word}."
    yield sum(letter in "aeiou" for letter in answer) / max(len(answer), 1)


@env.template()
async def broken(word: str):
    yield f"Write {word}."
    raise OSError("the grader's disk is gone")


tasks = [different(word=word) for word in ("red", "sun", "pot", "log")]
