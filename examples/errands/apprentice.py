"""An apprentice of mini-swe-agent: runs in the program's own form, with commands that are often wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from env import KINDS, Kind, command_of, text_of

from hud.environment import Task
from hud.eval import Grade, Run
from hud.trace import (
    AgentStep,
    Message,
    Step,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolStep,
    Trace,
    call_message,
    new_id,
)
from hud_integrations.programs.mini_swe_agent import MiniSWEAgentConfig

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
OPTIONS = ("-c", "mini.yaml", "-c", "agent.instance_template=Please solve this issue: {{task}}")
"""Options of the program: its configuration, with a prompt of one line in place of 500 tokens, which takes a CPU less time."""
MARK = "THE ERRAND"
"""Stands for the errand in the form."""
RIGHT = 0.3
"""Share of right commands."""


@dataclass(frozen=True)
class Form:
    """What the program says around an errand."""

    opening: list[Message]
    tool: ToolSpec
    result: str
    """Result of a command without output."""


def form_of_program() -> Form:
    """Return the form of the program's conversations, from one run of it whose model gives two fixed commands."""
    requests: list[dict[str, Any]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _model(requests)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        variables = {
            name: value
            for name, value in MiniSWEAgentConfig.recipe.variables.items()
            if "{" not in value
        }
        address = f"http://127.0.0.1:{server.server_port}/v1"
        with tempfile.TemporaryDirectory() as folder:
            access = {"OPENAI_API_BASE": address, "OPENAI_API_KEY": "none", "HOME": folder}
            subprocess.run(
                ["mini", "-m", "openai/model", "-t", MARK, "-y", "--exit-immediately", *OPTIONS],
                cwd=folder,
                env={"PATH": os.environ["PATH"], **variables, **access},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
            )
        server.shutdown()
    *opening, _, result = requests[-1]["messages"]
    return Form(
        [Message(role=message["role"], content=message["content"]) for message in opening],
        ToolSpec(**requests[-1]["tools"][0]["function"]),
        result["content"],
    )


def _model(requests: list[dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Model(BaseHTTPRequestHandler):
        """Server of chat completions: a command without output, then the last one."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            command = "true" if len(requests) == 1 else SUBMIT
            call = call_message(new_id(), "bash", json.dumps({"command": command}))
            message = {"role": "assistant", "content": "", "tool_calls": [call]}
            choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "model"}
            answer |= {"choices": [choice]}
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Model


def apprentice_run(task: Task, form: Form, rng: random.Random) -> Run:
    """Return a run of the apprentice: one command, right with the chance `RIGHT`, then the program's end."""
    right = task.args["kind"], task.args["name"]
    command = command_of(*(right if rng.random() < RIGHT else _slip(*right, rng)))
    run = Run(task=task, trace=Trace(trace_id=new_id()))
    run.grade = Grade(reward=float(command == command_of(*right)))
    run.tools = [form.tool]
    opening = [
        message.model_copy(update={"content": str(message.content).replace(MARK, text_of(*right))})
        for message in form.opening
    ]
    run.record(Step(source="user", messages=opening))
    for words in (command, SUBMIT):
        call = ToolCall(name="bash", arguments={"command": words})
        run.record(AgentStep(content="", tool_calls=[call], done=words == SUBMIT))
        if words != SUBMIT:
            run.record(ToolStep(call=call, result=ToolResult.of_text(form.result)))
    return run


def _slip(kind: Kind, name: str, rng: random.Random) -> tuple[Kind, str]:
    """Return an errand of another kind, with the same file."""
    return rng.choice([other for other in KINDS if other != kind]), name
