"""`python -m hud.environment.manifest SOURCE [--name NAME]`: what an environment offers, as one line of JSON.

Exit status 2: it could not be loaded, as standard error says.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import orjson

from hud.environment.environment import Environment
from hud.environment.loading import load_environment
from hud.errors import HudError


def manifest_of(environment: Environment) -> dict[str, Any]:
    """Return an environment's name, version, tasks with the schemas of their arguments, and capabilities."""
    return {
        "name": environment.name,
        "version": environment.version,
        "tasks": [template.row() for template in environment.templates.values()],
        "capabilities": [],
    }


def main() -> int:
    """Load and describe."""
    parser = argparse.ArgumentParser(prog="hud.environment.manifest")
    parser.add_argument("source")
    parser.add_argument("--name")
    options = parser.parse_args()
    try:
        environment = load_environment(options.source, name=options.name)
    except HudError as error:
        print(error, file=sys.stderr)
        return 2
    # What the environment printed while it was loaded stands on lines before.
    sys.stdout.write("\n" + orjson.dumps(manifest_of(environment)).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
