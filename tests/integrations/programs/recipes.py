"""How each program is begun against a server, and the calls by which a scripted model solves the task with its tools."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.platform.gateway.scripted_server import ScriptedTurn

from hud.agents.programs.program_files import program_files

TASK = "Mend total.py so that check.py passes."
BIN = Path(sys.executable).parent
NPM = BIN.parent / "npm" / "node_modules" / ".bin"
CLIENTS = Path(__file__).parent / "clients"
DONE = ScriptedTurn("It passed.", text="The check passes.")


@dataclass(frozen=True)
class Recipe:
    """One program with its defaults."""

    command: list[str]
    turns: Callable[[Path], list[ScriptedTurn]]
    """Returns the model's turns, for the folder of the task."""
    extends: int
    """Calls whose prompts begin with the ids of the call before, of three."""
    extends_in_a_run: int = 3
    """The same with a run pass: answers are known although the program rewrites them."""
    mark: str = TASK
    """Text that only prompts of the main agent hold."""
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Settings by path, below the home; SERVER stands for the server's address, SECRET for the key."""
    says: str = "The check passes."

    def skip_unless_installed(self):
        """Skip a test where the program is not installed, as those of Node without npm."""
        if not Path(self.command[0]).exists():
            pytest.skip(f"{self.command[0]} is not installed")

    def skip_unless_readable_by_all(self):
        """Skip a test in a workspace whose user, another one where its server is root, may not start the program."""
        files = [place.resolve() for place in program_files(Path(self.command[0]))]
        folders = {folder for file in files for folder in (file, *file.parents)}
        if os.geteuid() == 0 and any(folder.stat().st_mode & 0o005 != 0o005 for folder in folders):
            pytest.skip(f"{self.command[0]} or its interpreter is not readable by every user")


def steps(read, edit, run, done=DONE):
    """Return turns with the tools' names and arguments."""

    def turns(folder):
        path = str(folder / "total.py")
        calls = (("I read the file.", read), ("It subtracts.", edit), ("Now the check.", run))
        made = [(thought, *call(path)) for thought, call in calls]
        return [
            ScriptedTurn(thought, tool=tool, arguments=given) for thought, tool, given in made
        ] + [done]

    return turns


def shell(name, field_name, last=None):
    """Return turns that use a shell alone."""
    commands = ["cat total.py", "sed -i 's/a - b/a + b/' total.py", "python3 check.py"]
    turns = [
        ScriptedTurn("I run a command.", tool=name, arguments={field_name: command})
        for command in [*commands, *([last] if last else [])]
    ]
    return lambda folder: turns if last else [*turns, DONE]


def library(script, *arguments, extends=3, extends_in_a_run=3, done=DONE, environment=None):
    """Return the recipe of a client library, with tools of the task's own."""
    return Recipe(
        [str(BIN / "python"), str(CLIENTS / script), *arguments],
        steps(
            lambda _: ("read_file", {"path": "total.py"}),
            lambda _: ("edit_file", {"path": "total.py", "old": "a - b", "new": "a + b"}),
            lambda _: ("run_command", {"command": "python3 check.py"}),
            done,
        ),
        extends,
        extends_in_a_run,
        environment=environment or {},
    )


CODEX = """
model = "scripted"
model_provider = "openhud"
[model_providers.openhud]
name = "OpenHUD"
base_url = "SERVER/v1"
wire_api = "responses"
env_key = "HUD_API_KEY"
"""
OPENCODE = {
    "provider": {
        "openhud": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "SERVER/v1", "apiKey": "SECRET"},
            "models": {"scripted": {}},
        }
    },
}
GEMINI = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

RECIPES = {
    "claude-code": Recipe(
        [
            *(str(NPM / "claude"), "-p", TASK, "--model", "scripted"),
            *("--allowedTools", "Read,Edit,Bash", "--permission-mode", "acceptEdits"),
        ],
        steps(
            lambda path: ("Read", {"file_path": path}),
            lambda path: (
                "Edit",
                {"file_path": path, "old_string": "a - b", "new_string": "a + b"},
            ),
            lambda _: ("Bash", {"command": "python3 check.py", "description": "Run the check"}),
        ),
        # It adds `replace_all: false` to the arguments of Edit.
        extends=2,
    ),
    "codex": Recipe(
        [
            *(str(NPM / "codex"), "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", TASK),
        ],
        shell("exec_command", "cmd"),
        extends=3,
        files={".codex/config.toml": CODEX},
    ),
    "gemini-cli": Recipe(
        [str(NPM / "gemini"), "--yolo", "--skip-trust", "-p", TASK],
        steps(
            lambda path: ("read_file", {"file_path": path}),
            lambda path: (
                "replace",
                {
                    "file_path": path,
                    "old_string": "a - b",
                    "new_string": "a + b",
                    "instruction": "Add.",
                },
            ),
            lambda _: ("run_shell_command", {"command": "python3 check.py"}),
        ),
        extends=3,
        files={".gemini/settings.json": json.dumps(GEMINI)},
    ),
    "opencode": Recipe(
        [str(NPM / "opencode"), "run", "-m", "openhud/scripted", TASK],
        steps(
            lambda path: ("read", {"filePath": path}),
            lambda path: (
                "edit",
                {"filePath": path, "oldString": "a - b", "newString": "a + b"},
            ),
            lambda _: ("bash", {"command": "python3 check.py", "description": "Run the check"}),
        ),
        extends=3,
        # Its title call holds the task, too.
        mark="Today's date",
        files={".config/opencode/opencode.json": json.dumps(OPENCODE)},
    ),
    "qwen-code": Recipe(
        [str(NPM / "node"), str(NPM / "qwen"), "--yolo", "--auth-type", "openai", "-p", TASK],
        steps(
            lambda path: ("read_file", {"file_path": path}),
            lambda path: (
                "edit",
                {"file_path": path, "old_string": "a - b", "new_string": "a + b"},
            ),
            lambda _: (
                "run_shell_command",
                {"command": "python3 check.py", "is_background": False},
            ),
        ),
        extends=3,
    ),
    "mini-swe-agent": Recipe(
        [str(BIN / "mini"), "-m", "openai/scripted", "-t", TASK, "-y", "--exit-immediately"],
        shell("bash", "command", SUBMIT),
        extends=3,
        environment={"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"},
        says="passed",
    ),
    # Clients of chat completions that send no `reasoning_content` lose the thoughts: no field there is for a seal.
    "openai-agents, chat": library("openai_agents.py", "chat", extends=0),
    "openai-agents, responses": library("openai_agents.py", "responses"),
    "pydantic-ai, chat": library("pydantic_agent.py", "openai-chat:scripted"),
    "pydantic-ai, responses": library("pydantic_agent.py", "openai-responses:scripted"),
    "pydantic-ai, messages": library("pydantic_agent.py", "anthropic:scripted"),
    "litellm, chat": library("litellm_loop.py", "openai/scripted"),
    "litellm, messages": library("litellm_loop.py", "anthropic/scripted"),
    "langgraph, chat": library("langgraph_agent.py", "chat", extends=0),
    "langgraph, responses": library("langgraph_agent.py", "responses"),
    "langgraph, messages": library("langgraph_agent.py", "messages"),
    # It writes earlier calls as text.
    "smolagents": library(
        "smolagents_agent.py",
        extends=0,
        extends_in_a_run=0,
        done=ScriptedTurn(tool="final_answer", arguments={"answer": DONE.text}),
    ),
    "inspect, chat": library(
        "inspect_agent.py",
        "openai/scripted",
        done=ScriptedTurn(tool="submit", arguments={"answer": DONE.text}),
    ),
}
