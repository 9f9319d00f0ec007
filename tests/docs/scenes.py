"""What each page of the documentation takes as given: the reader's own files, models, addresses and names."""

from tests.docs.stage import TASKS, Scene

OFFICE = '''"""Two desks: a clerk, and a manager who asks him."""

from hud import Environment
from hud.environment import AgentTool

office = Environment("office")
desk = Environment("desk")


@office.template()
async def find(word: str):
    """Look a word up."""
    answer = yield f"Say {word}, and where the door is."
    yield min(1.0, len(answer) / 80)


desk.add_tool(AgentTool(find, model="clerk", name="ask_clerk"))


@desk.template()
async def ask(word: str):
    """Have a word looked up."""
    answer = yield f"Say {word}, and where the door is."
    yield min(1.0, len(answer) / 80)
'''
CLERK = OFFICE.partition("desk.add_tool")[0].replace('desk = Environment("desk")\n', "")

CLAUDE_CODE = """#!/bin/bash
# As Claude Code does: keeps a server's place, and asks it who it is.
set -e -o pipefail
[ "$1 $2" = "mcp add" ]
hello='{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {},'
hello+=' "clientInfo": {"name": "claude-code", "version": "1"}}}'
if [ "$3 $4" = "--transport http" ]; then
  curl -sf "$6" -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' -d "$hello" |
    grep serverInfo
else
  while [ "$1" != -- ]; do shift; done
  shift
  echo "$hello" | "$@" | grep serverInfo
fi
"""

KUBECTL = """#!/bin/bash
# The kustomization is rendered where there is a kubectl, and applied nowhere.
set -e
[ "$1 $2" = "apply -k" ] && grep -q '^HUD_API_KEY=hud_' "$3/pass.env"
kubectl=$(PATH="${PATH#*:}" command -v kubectl) || kubectl=true
"$kubectl" kustomize "$3" >/dev/null
rm "$3/pass.env"
"""
SBATCH = """#!/bin/bash
[ "$1 $2" = "--nodes 4" ] && grep -q ^hud_ "$HUD_PASS_FILE" && bash -n "$3"
"""
DOCKER = """#!/bin/bash
# No image is built, which takes a daemon and the package index: its parts are there, and what it runs with is allowed.
case $1 in
  build) [ "$*" = "build -t openhud ." ] && [ -f "$ROOT/Dockerfile" ] ;;
  run) grep -q "^VOLUME .*/data" "$ROOT/Dockerfile" && grep -q "^EXPOSE 8000" "$ROOT/Dockerfile" ;;
esac
"""
SSH = """#!/bin/bash
# Every machine is this one, with a home of its own.
while [[ $1 == -* ]]; do shift 2; done
mkdir -p "$STAGE/$1"
cd "$STAGE/$1"
HOME="$PWD" HUD_HOME="$PWD/.hud" bash -c "$2"
"""

SCENES = {
    "README.md": Scene(
        stands={
            "add FOLDER": 'add "$MODEL_FOLDER"',
            "head mine --set ID": 'head mine --set "$(checkpoint_of mine)"',
            "trace ID": 'trace "$(latest_run)"',
            "export JOB": 'export "$(latest_job)"',
        },
    ),
    "docs/agent-programs.md": Scene(
        models=("my-model",),
        stands={
            "python -m uvicorn service:app --port 9000": (
                "export AGENT_PORT=$(python -c \"import socket; print(socket.create_server(('127.0.0.1', 0)).getsockname()[1])\"); "
                'python -m uvicorn service:app --port "$AGENT_PORT" --log-level warning >/dev/null 2>&1 & '
                'echo $! >>"$STAGE/pids"; '
                'until curl -s "http://127.0.0.1:$AGENT_PORT/docs" >/dev/null; do sleep 0.1; done'
            ),
            "http://127.0.0.1:9000": "http://127.0.0.1:$AGENT_PORT",
        },
    ),
    "docs/agents.md": Scene(
        stands={"http://localhost:8000/v1": "$CHAT_URL/v1"},
        names='from hud.eval import Taskset\ntasks = Taskset.from_file("env.py")',
        answers="answer a door\n" * 4,
    ),
    "docs/benchmarks.md": Scene(
        stands={"http://localhost:8000/v1": "$CHAT_URL/v1"},
    ),
    "docs/capabilities.md": Scene(
        stands={"tcp://127.0.0.1:8765": "tcp://127.0.0.1:$SERVE_PORT"},
        needs="bwrap",
        check="await look()",
    ),
    "docs/coding-agents.md": Scene(
        stands={
            "http://localhost:8000": "$UP_URL",
            'os.environ["HUD_API_KEY"]': '"$UP_KEY"',
            "signal JOB": 'signal "$(latest_job)"',
            "fork Qwen/Qwen3.5-4B": 'fork "$MODEL_FOLDER"',
            # A model that has not learned from the solution's runs has no group with signal.
            "hud train desk-next desk.py --steps 40": (
                "hud eval desk.py solution.py --all\n"
                "hud train desk-next desk.py --from latest\n"
                "hud train desk-next desk.py --steps 40"
            ),
            "hud models promote desk-agent CHECKPOINT": (
                'held hud models promote desk-agent "$(newest_of desk-next)"'
            ),
        },
    ),
    "docs/deployment.md": Scene(
        files={"support/env.py": TASKS % (["red", "green"],)},
        stands={
            "HUD_API_URL=http://localhost:8000 HUD_API_KEY=hud_...": (
                'HUD_API_URL="$UP_URL" HUD_API_KEY="$UP_KEY" PROVIDER_KEY=secret'
            ),
            "fork Qwen/Qwen3-4B": 'fork "$MODEL_FOLDER"',
        },
    ),
    "docs/one-gpu.md": Scene(
        stands={
            "fork Qwen/Qwen3-4B": 'fork "$MODEL_FOLDER"',
            "signal JOB": 'signal "$(latest_job)"',
            "max_tokens = 1024": "max_tokens = 32",
        },
    ),
    "docs/supervised.md": Scene(
        models=("my-policy",),
        files={
            "teacher.py": "def agent(messages, tools, trace):\n    return 'red green blue yellow'\n"
        },
        setup="hud eval tasks.py teacher.py --all",
    ),
    "docs/preferences.md": Scene(models=("my-policy",)),
    "docs/rewards.md": Scene(
        models=("my-policy",),
        stands={"signal JOB": 'signal "$(latest_job)"'},
    ),
    "docs/evaluation.md": Scene(
        models=("triage",),
        stands={
            '"count-straw"': "tasks[0].slug",
            "signal JOB": 'signal "$(latest_job)"',
        },
    ),
    "docs/fleet.md": Scene(
        writes="examples/fleet",
        files={
            "rooms/env.py": TASKS % (["red", "green"],),
            "bin/kubectl": KUBECTL,
            "bin/sbatch": SBATCH,
            "bin/ssh": SSH,
        },
        setup="""
hud up
export HUD_API_URL="$UP_URL" HUD_API_KEY="$UP_KEY"
hud models add "$MODEL_FOLDER" --name mine
hud deploy rooms
""",
        stands={
            "HUD_API_KEY=PASS": 'HUD_API_KEY="$(hud fleet pass create docs -q)"',
            "http://localhost:8000": "$UP_URL",
            " NODE ": ' "$(hostname)" ',
        },
        check="""
import asyncio

from hud.client import connect

for _ in range(100):  # A node says how many it has finished when it next calls.
    nodes = (await connect().get("/v2/fleet-nodes"))["items"]
    if sum(node["finished"] for node in nodes) >= 2:
        break
    await asyncio.sleep(0.3)
else:
    raise AssertionError(nodes)
""",
    ),
    "docs/hierarchies.md": Scene(
        models=("manager", "clerk", "my-other-policy"),
        files={
            "tasks.py": OFFICE + '\n\ntasks = [ask(word=word) for word in ("red", "green")]\n',
            "held_out.py": OFFICE + '\n\ntasks = [ask(word="pink")]\n',
            "clerk_tasks.py": CLERK
            + '\n\ntasks = [find(word=word) for word in ("red", "green")]\n',
            "clerk_held_out.py": CLERK + '\n\ntasks = [find(word="pink")]\n',
        },
        names="""
from hud import TrainingClient
from hud.agents import ScriptedAgent, create_agent
from hud.eval import Taskset
from hud.trace import ToolCall

async def asking(run):
    return (await run.call_tool(ToolCall(id="1", name="ask_clerk", arguments={"word": "red"}))).text

manager = ScriptedAgent(asking)
manager.subagents = {"ask_clerk": "clerk"}
job = await Taskset.from_file("tasks.py").run(manager, group=4)
agent, trainer = create_agent("manager"), TrainingClient("clerk")
""",
    ),
    "docs/incident-lab.md": Scene(
        stands={
            " --all": " --task-ids 0,9",
            "--count 50": "--count 24",
            "compare MODEL MODEL --group 4": "compare claude claude",
            '{"url": "https://mcp.sentry.dev/mcp", "headers": {"Authorization": "Bearer ${SENTRY_TOKEN}"}}': (
                '{"command": "python", "args": ["-m", "hud_benchmarks.incident_lab.desk", "tracker", "leak-orders"]}'
            ),
            '{"command": "kubectl-mcp", "env": {"KUBECONFIG": "${KUBECONFIG}"}}': (
                '{"command": "python", "args": ["-m", "hud_benchmarks.incident_lab.desk", "cluster", "leak-orders"]}'
            ),
        },
        names="""
import shutil
from hud_benchmarks.incident_lab.incidents import RECORDED

shutil.copytree(RECORDED, ".lab")
""",
    ),
    "docs/mcp.md": Scene(
        files={"prompts/note.txt": "", "bin/claude": CLAUDE_CODE},
        setup="hud up",
        stands={"http://localhost:8000": "$UP_URL"},
        check="""
assert tickets.choice.named("find") == "tickets_find"
assert (search.name, search.timeout, search.choice.takes("get_page")) == ("search", 30, True)
assert not search.choice.takes("delete")
""",
    ),
    "docs/gateway.md": Scene(
        models=("mine",),
        setup='hud up\nexport HUD_API_URL="$UP_URL" HUD_API_KEY="$UP_KEY"',
        stands={"http://localhost:8000": "$UP_URL"},
    ),
    "docs/guard.md": Scene(models=("my-policy",)),
    "docs/optimize.md": Scene(models=("my-policy",)),
    "docs/improve.md": Scene(models=("my-policy",)),
    "docs/losses.md": Scene(
        models=("my-policy",),
        names="""
from hud.agents import create_agent
from hud.eval import Taskset

job = await Taskset.from_file("tasks.py").run(create_agent("my-policy"), group=2)
""",
    ),
    "docs/run-passes.md": Scene(models=("my-policy",)),
    "docs/chat-formats.md": Scene(stands={"FOLDER ": '"$MODEL_FOLDER" '}),
    "docs/scaling.md": Scene(
        models=("my-policy",),
        stands={'"FOLDER"': '"$MODEL_FOLDER"'},
    ),
    "docs/promotion.md": Scene(
        models=("my-policy",),
        setup="hud train my-policy tasks.py --steps 1 --group 2",
        stands={
            # Two tasks cannot show that the newest is better than the base: it is held, with exit code 1.
            "hud models promote my-policy step-40 --taskset held_out.py --critical tag=refunds": (
                "newest=$(newest_of my-policy)\n"
                "hud models head my-policy --set base\n"
                'held hud models promote my-policy "$newest" --taskset held_out.py'
            ),
        },
    ),
    "docs/platform.md": Scene(
        models=("mine",),
        files={"shop/env.py": TASKS % (["red", "green"],), "bin/docker": DOCKER},
        stands={
            "http://localhost:8000": "$UP_URL",
            "HUD_API_KEY=hud_...": "HUD_API_KEY=$UP_KEY",
            "TOKEN=...": "TOKEN=secret",
            "hud eval shop-tasks AGENT": "hud eval shop-tasks mine",
            " JOB ": ' "$(latest_job)" ',
        },
    ),
    "docs/reference/agents.md": Scene(
        stands={"http://localhost:8000/v1": "$CHAT_URL/v1"},
        names='from hud.eval import Taskset\ntasks = Taskset.from_file("env.py")',
    ),
    "docs/reference/hud.md": Scene(
        models=("my-policy",),
        stands={"tcp://127.0.0.1:8765": "tcp://127.0.0.1:$SERVE_PORT"},
    ),
    "docs/reference/train.md": Scene(models=("my-policy",)),
    "docs/training.md": Scene(
        stands={
            "--preset tiny": "--preset tiny --hidden 32 --layers 1",
            "METRICS": '"$(ls -t $(find "$HUD_HOME" -name metrics.jsonl) | head -n 1)"',
            "fork Qwen/Qwen3.5-4B": 'fork "$MODEL_FOLDER"',
        },
    ),
    "docs/trajectories.md": Scene(
        setup="hud eval examples/arithmetic.py examples/arithmetic_agent.py --all",
        stands={"export JOB": 'export "$(latest_job)"'},
        check="""
assert len(lessons) == len(runs) == 10
assert all(run["completion"] and run["answer"] for run in runs)
""",
    ),
    "docs/vllm.md": Scene(
        files={"bin/vllm": '#!/bin/bash\n[ "$1" = serve ] && [ -f "$2/config.json" ]\n'},
        stands={
            "FOLDER ": '"$MODEL_FOLDER" ',
            "http://gpu-1:8000": "$VLLM_1",
            "http://gpu-2:8000": "$VLLM_2",
            "/disk/of/all": '"$HUD_HOME"',
        },
        names="""
from pathlib import Path
from tests.integrations.vllm.vllm_stand_in import StandIn

for number in (1, 2):
    server = StandIn(Path(variables["MODEL_FOLDER"]))
    closing.callback(server.__exit__, None, None, None)
    variables[f"VLLM_{number}"] = server.__enter__().url
""",
    ),
    "docs/workspace.md": Scene(
        files={
            "repos/calc/calc.py": "def add(a, b):\n    return a + b  # TODO: name it\n",
        },
        needs="bwrap",
        check="""
from hud.eval import LocalRuntime, Taskset
from hud.trace import ToolStep

job = await Taskset("docs", [repair(bug="sums")]).run(agent, runtime=LocalRuntime(repair.environment))
assert (job.errors, job.reward) == ([], 1.0)
step = next(step for step in job.runs[0].trace.steps if isinstance(step, ToolStep))
assert "calc.py" in step.result.content[0].text
""",
    ),
}
