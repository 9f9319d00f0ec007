"""Task folders as Harbor has them: `write_task` makes one."""

TOML = """schema_version = "1.4"

[task]
name = "letters/{name}"

[agent]
timeout_sec = 120.0

[verifier]
timeout_sec = 60.0

[environment]
network_mode = "no-network"
memory_mb = 512
{environment}
"""
TEST = """#!/bin/bash
if [ "$(cat greeting.txt)" = "$(cat /tests/wanted.txt)" ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
SOLVE = "#!/bin/bash\ncp /solution/right.txt greeting.txt\n"


def write_task(root, name, *, environment="", dockerfile=None, test=TEST, wanted="hello"):
    """Write a task whose test compares greeting.txt with the wanted text."""
    files = {
        "instruction.md": f"Write {wanted} to greeting.txt.\n",
        "task.toml": TOML.format(name=name, environment=environment),
        "environment/Dockerfile": dockerfile
        or "FROM ubuntu:24.04\nWORKDIR /app\nCOPY notes.txt .\n",
        "environment/notes.txt": "a note\n",
        "tests/test.sh": test,
        "tests/wanted.txt": f"{wanted}\n",
        "solution/solve.sh": SOLVE,
        "solution/right.txt": f"{wanted}\n",
    }
    for path, text in files.items():
        target = root / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
