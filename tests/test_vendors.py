"""No file of the core or the platform names a system that joins from `hud_integrations`, but where a user has to read the name."""

from __future__ import annotations

import re

import pytest

from tests.sources import CORE, folder_of, place

VENDORS = [
    "tinker",
    "trl",
    "verl",
    "openrlhf",
    "harbor",
    "openenv",
    "verifiers",
    "gymnasium",
    "wandb",
    "mlflow",
    "ray",
    "anthropic",
    "gemini",
]
NAME = re.compile(rf"(?<![a-z])({'|'.join(VENDORS)})(?![a-z])", re.IGNORECASE)
SUFFIXES = {".py", ".html", ".js", ".css", ".jinja", ".toml", ".md", ".json"}
NAMED = {
    "hud/cli/evaluation/importing.py": "help of hud import: an example of what can be imported, and its page",
    "hud/cli/hud_commands.py": "answer to a command of HUD's, hud harbor: the commands that do the same here",
    "hud/cli/fleet/group.py": "help of hud fleet, which has a command for it",
    "hud/cli/evaluation/eval.py": "help of hud eval: the agents that come with it",
    "hud/cli/models/adding.py": "help of hud models add: the dialects that come with it",
    "hud/inference/context_overflow.py": "sources of sentences by which servers refuse a conversation",
    "hud/inference/prices.json": "prices of models, by their names",
    "hud_platform/store/migrations/versions/0008_training_backends.py": "reads rows of earlier releases, which had the name",
}
"""Files with a reason. The list may only shrink."""
MOST_NAMED = 8


def vendors_in(text: str) -> set[str]:
    """Return the systems that a text names."""
    return {name.lower() for name in NAME.findall(text)}


def test_no_file_of_the_core_and_the_platform_names_a_vendor_without_a_reason():
    files = [*CORE.rglob("*"), *folder_of("hud_platform").rglob("*")]
    named = {
        place(path): names
        for path in files
        if path.suffix in SUFFIXES
        and (names := vendors_in(f"{place(path)} {path.read_text(encoding='utf-8')}"))
    }
    assert {file: names for file, names in named.items() if file not in NAMED} == {}
    assert set(NAMED) - set(named) == set(), "These name none any more: take them off the list."
    assert len(NAMED) <= MOST_NAMED


@pytest.mark.parametrize("text", ["from tinker import x", "kind='Harbor'", "_wandb", "TRL_CONFIG"])
def test_a_vendor_is_noticed(text):
    assert vendors_in(text)


@pytest.mark.parametrize("text", ["overload", "ctrl", "overlap", "tinkering"])
def test_other_words_are_none(text):
    assert not vendors_in(text)
