"""No file of the core names a system that joins from `hud_integrations`, but where a user has to read the name."""

from __future__ import annotations

import re

import pytest

from tests.sources import CORE

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
    "cli/evaluation/importing.py": "help of hud import: an example of what can be imported, and its page",
    "cli/hud_commands.py": "answer to a command of HUD's, hud harbor: the commands that do the same here",
    "cli/fleet/group.py": "help of hud fleet, which has a command for it",
    "cli/evaluation/eval.py": "help of hud eval: the agents that come with it",
    "cli/models/adding.py": "help of hud models add: the dialects that come with it",
    "inference/context_overflow.py": "sources of sentences by which servers refuse a conversation",
    "inference/prices.json": "prices of models, by their names",
    "platform/store/migrations/versions/0008_training_backends.py": "reads rows of earlier releases, which had the name",
}
"""Files with a reason. The list may only shrink."""
MOST_NAMED = 8


def vendors_in(text: str) -> set[str]:
    """Return the systems that a text names."""
    return {name.lower() for name in NAME.findall(text)}


def test_no_file_of_the_core_names_a_vendor_without_a_reason():
    files = (path for path in CORE.rglob("*") if path.suffix in SUFFIXES)
    named = {
        path.relative_to(CORE).as_posix(): names
        for path in files
        if (names := vendors_in(f"{path.relative_to(CORE)} {path.read_text(encoding='utf-8')}"))
    }
    assert {place: names for place, names in named.items() if place not in NAMED} == {}
    assert set(NAMED) - set(named) == set(), "These name none any more: take them off the list."
    assert len(NAMED) <= MOST_NAMED


@pytest.mark.parametrize("text", ["from tinker import x", "kind='Harbor'", "_wandb", "TRL_CONFIG"])
def test_a_vendor_is_noticed(text):
    assert vendors_in(text)


@pytest.mark.parametrize("text", ["overload", "ctrl", "overlap", "tinkering"])
def test_other_words_are_none(text):
    assert not vendors_in(text)
