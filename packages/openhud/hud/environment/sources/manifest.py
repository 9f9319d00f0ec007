"""`python -m hud.environment.sources.manifest SOURCE OUT [--name NAME]`: write an environment's manifest to OUT, as JSON.

Exit status 2: it could not be loaded; the reason is on standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.environment.environment import Environment
from hud.environment.sources.loader import load_environment
from hud.errors import HudError
from hud.trace import ToolSpec


def manifest_of(environment: Environment) -> dict[str, Any]:
    """Return an environment's name, version, tasks and tools with the schemas of their arguments, and capabilities.

    Tools of running parts, such as MCP servers, are not included.
    """
    return {
        "name": environment.name,
        "version": environment.version,
        "tasks": [template.row() for template in environment.templates.values()],
        "tools": [tool_row(spec) for spec in environment.tool_specs],
        "capabilities": [
            *({"name": capability.name} for capability in environment.capabilities),
            *({"name": name} for name in environment.parts),
        ],
    }


def tool_row(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "parameters": spec.parameters}


def main() -> int:
    parser = argparse.ArgumentParser(prog="hud.environment.sources.manifest")
    parser.add_argument("source")
    parser.add_argument("out", type=Path)
    parser.add_argument("--name")
    options = parser.parse_args()
    try:
        environment = load_environment(options.source, name=options.name)
        options.out.write_bytes(exact_json.dumps(manifest_of(environment)))
    except HudError as error:
        sys.stdout.flush()  # In merged streams the reason is last.
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit without waiting for the environment's threads and exit handlers.
    os._exit(status)
