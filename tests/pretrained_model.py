"""The pretrained model of the tests, SmolLM2-135M-Instruct: `python -m tests.pretrained_model` fetches it, once for all runs of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hud.engine.model_files.named_models import NAMED_MODELS, cached_file, fetch
from hud.errors import UsageError

NAME = "smollm2-135m-instruct"
MODEL = NAMED_MODELS[NAME]
DOWNLOADS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openhud-tests"


def place_download(home: Path) -> None:
    """Give a HUD_HOME the downloaded file, so that the model is added without network. Raises `UsageError` where it cannot be fetched."""
    fetched = fetch(MODEL, DOWNLOADS)
    target = cached_file(MODEL, home)
    target.parent.mkdir(parents=True)
    target.symlink_to(fetched)


def main() -> None:
    """Fetch the model; without network, say so: the tests that need it are skipped."""
    try:
        fetch(MODEL, DOWNLOADS)
    except UsageError as error:
        print(f"{error} Tests of {NAME} are skipped.", file=sys.stderr)


if __name__ == "__main__":
    main()
