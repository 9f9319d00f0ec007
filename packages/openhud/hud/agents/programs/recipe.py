"""`ProgramRecipe`: how an agent program is started for a run, and where its answer is.

Commands, variables and files are templates. Their placeholders, in braces, are fields of `Placeholders`; other braces stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Placeholders:
    """Values of a run."""

    prompt: str
    prompt_file: str
    """Path of a file with the prompt."""
    server: str
    """Address of the model's server: the root of all dialects."""
    base_url: str
    """Address for clients of chat completions and responses: `server` and `/v1`."""
    key: str
    model: str
    workspace: str
    """The working directory."""
    home: str
    mcp_url: str = ""
    """Address of the server with the environment's tools; empty: it has none."""
    mcp_config: str = ""
    """Path of a JSON file with that server in `mcpServers`, the form that most programs read; empty: there are no tools."""

    def fill(self, template: str) -> str:
        """Return a template with its placeholders filled."""
        values = asdict(self)
        return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)

    def fill_json(self, template: Any) -> Any:
        """Return JSON data with the placeholders of its texts filled."""
        if isinstance(template, dict):
            return {self.fill(name): self.fill_json(value) for name, value in template.items()}
        if isinstance(template, list):
            return [self.fill_json(value) for value in template]
        return self.fill(template) if isinstance(template, str) else template


@dataclass(frozen=True)
class ProgramRecipe:
    """One program."""

    name: str
    """Name for messages, as its publisher writes it."""
    command: tuple[str, ...]
    """Command line; its first word is the program's file."""
    install: str
    """Command that installs it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | dict[str, Any]] = field(default_factory=dict)
    """Settings by path below the home folder: text, or JSON."""
    mcp_arguments: tuple[str, ...] = ()
    """Further words of the command where the environment has tools."""
    mcp_files: Mapping[str, str | dict[str, Any]] = field(default_factory=dict)
    """Settings where the environment has tools: text is appended to that of `files`, JSON merged."""
    takes_tools: bool = True
    """False: it is no client of MCP, and plays no task whose environment has tools."""
    answer_file: str | None = None
    """Path, below the home folder, of a file with the answer; None: standard output is the answer."""
    answer_keys: tuple[str, ...] = ()
    """Keys that lead to the answer in a JSON file."""
    version: tuple[str, ...] = ("--version",)
    """Arguments with which it prints its version; empty: it has none."""

    def settings_files(self, values: Placeholders) -> dict[str, str]:
        """Return the texts of the settings files, by path below the home folder."""
        parts = [self.files, *([self.mcp_files] if values.mcp_url else [])]
        texts: dict[str, str | dict[str, Any]] = {}
        for part in parts:
            for path, content in part.items():
                texts[path] = _joined(texts.get(path), content)
        return {
            path: values.fill(content)
            if isinstance(content, str)
            else json.dumps(values.fill_json(content), indent=2)
            for path, content in texts.items()
        }

    def arguments(self, values: Placeholders) -> list[str]:
        """Return the command line."""
        words = [*self.command, *(self.mcp_arguments if values.mcp_url else ())]
        return [values.fill(word) for word in words]

    def answer(self, stdout: str, file: str | None) -> str:
        """Return the answer; `file` is the text of `answer_file`, None where there is none."""
        if file is None:
            return stdout.strip()
        if not self.answer_keys:
            return file.strip()
        try:
            value = json.loads(file)
            for key in self.answer_keys:
                value = value[key]
        except (ValueError, KeyError, TypeError):
            return stdout.strip()
        return str(value).strip()


def _joined(
    first: str | dict[str, Any] | None, second: str | dict[str, Any]
) -> str | dict[str, Any]:
    if isinstance(first, dict) and isinstance(second, dict):
        return {**first, **second}
    return f"{first}{second}" if isinstance(first, str) and isinstance(second, str) else second
