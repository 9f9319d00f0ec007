from hud import Environment
from hud.graders import numeric_match

env = Environment("arithmetic")


@env.tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@env.template()
async def power(base: int, exponent: int):
    answer = yield f"What is {base} to the power of {exponent}?"
    yield numeric_match(answer, base**exponent)


tasks = [power(base=base, exponent=3) for base in range(2, 12)]
