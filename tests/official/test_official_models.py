"""The official client's commands about models."""

from __future__ import annotations

import pytest


def test_models_are_listed_with_what_create_agent_needs(official, server):
    model_id = server.create_model("listed")
    (row,) = [row for row in official.json("models", "list") if row["model_name"] == "listed"]
    assert (row["id"], row["sdk_agent_type"], row["is_trainable"]) == (
        model_id,
        "openai_compatible",
        True,
    )
    assert "listed" in official.hud("models", "list")


@pytest.mark.slow
def test_a_fork_is_a_model_of_its_own_without_checkpoints(official, server):
    base = server.create_model("forked-from")
    fork = official.json("models", "fork", "forked-from", "--name", "forked", "--yes")
    assert fork["model_name"] == "forked"
    assert server.model("forked")["id"] == fork["id"] != base
    assert official.json("models", "checkpoints", "forked") == []
    assert "No checkpoints yet" in official.hud("models", "checkpoints", "forked")
    assert official.json("models", "head", "forked") == {"model_id": fork["id"], "head": None}


@pytest.mark.slow
def test_what_is_not_there_and_what_is_there_already_is_told(official, server):
    server.create_model("taken")
    again = official.json("models", "fork", "taken", "--name", "taken", "--yes", exit_code=1)
    assert again["error"] == "conflict"
    assert "taken" in again["message"]
    missing = official.json("models", "head", "nowhere-at-all", exit_code=2)
    assert "not found" in missing["message"]


def test_a_wrong_key_is_refused_as_such(official):
    official.environment["HUD_API_KEY"] = "hud_" + "x" * 43
    refused = official.json("models", "list", exit_code=1)
    assert refused["error"] == "permission_denied", refused
