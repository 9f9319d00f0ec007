"""A script that solves examples/arithmetic.py; a model takes its place.

hud eval examples/arithmetic.py examples/arithmetic_agent.py --all
"""

from hud.trace import ToolCall


async def agent(run):
    """Multiply the base with itself, one tool call at a time."""
    words = run.prompt_text.rstrip("?").split()
    base, exponent = int(words[2]), int(words[-1])
    value = base
    for turn in range(exponent - 1):
        arguments = {"a": value, "b": base}
        result = await run.call_tool(ToolCall(id=str(turn), name="multiply", arguments=arguments))
        value = int(result.text)
    return str(value)
