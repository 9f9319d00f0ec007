"""Build hook of hatchling: a wheel carries the documentation's site, which `hud up` serves at /docs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SiteBuildHook(BuildHookInterface):
    """Builds the site strictly and adds it as `hud_dashboard/docs_site`. An editable installation has none: its checkout may."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the site to a wheel. Raises `SystemExit` if it cannot be built."""
        if version == "editable":
            return
        if find_spec("mkdocs") is None:
            sys.exit("A wheel of openhud carries its documentation: pip install 'openhud[docs]'.")
        self._folder = tempfile.TemporaryDirectory()
        built = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", self._folder.name],
            cwd=self.root,
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if built.returncode:
            sys.exit(f"The documentation's site cannot be built:\n{built.stdout}")
        build_data["force_include"][self._folder.name] = "hud_dashboard/docs_site"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder of the build."""
        if version != "editable":
            self._folder.cleanup()
