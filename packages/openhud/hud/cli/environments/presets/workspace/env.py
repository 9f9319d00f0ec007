"""TITLE: a shell and files for each run, in a sandbox.

Try it:   hud eval FOLDER/tasks.py FOLDER/agent.py --all
"""

from pathlib import Path

from hud import Environment
from hud.environment import WorkspaceLimits

env = Environment("NAME")
shell = env.workspace(
    Path(__file__).parent / "project", limits=WorkspaceLimits(memory_mb=512, seconds=600)
)
ASK = "import sys; sys.path.append('/workspace'); import calc; print(calc.mean(eval(sys.argv[1])))"
CASES = {"[4]": 4, "[1, 2, 6]": 3, "[0, 0, 0, 0]": 0, "[-1, 1, 3]": 1}


@env.template(id="repair", description="Repair a function.")
async def repair(problem: str):
    yield f"{problem} Repair /workspace/calc.py."
    right = 0
    for numbers, mean in CASES.items():
        # -I: nothing that the agent left stands in for Python's own modules. The judge is out here.
        done = await shell.bash(f'/usr/bin/python3 -I -c "{ASK}" "{numbers}"', timeout=10)
        right += done.stdout.strip() in (str(mean), f"{mean}.0")
    yield float(right == len(CASES))
