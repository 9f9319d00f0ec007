"""A scripted agent that solves TITLE: the proof that the tasks can be done.

Put a model in its place; it gets a shell and an editor:   hud eval FOLDER/tasks.py claude --all
"""

from hud.agents.native.bash import BashTool
from hud.trace import ToolCall


async def agent(run):
    """Change the line in the workspace's shell."""
    run.attach(BashTool(await run.open("ssh")))
    for number, command in enumerate(["cat calc.py", "sed -i 's:/ 2:/ len(numbers):' calc.py"]):
        call = ToolCall(id=str(number), name="bash", arguments={"command": command})
        await run.call_tool(call)
    return "mean divides by the number of numbers now."
