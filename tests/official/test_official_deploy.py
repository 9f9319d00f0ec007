"""The official `hud deploy` and `hud sync env`."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow


def registered(server, name):
    return [
        one
        for one in server.get("/v2/registry", params={"search": name})["items"]
        if one["name"] == name
    ]


def named(name):
    return (
        "from hud import Environment\n"
        f"env = Environment({name!r})\n"
        "@env.template(id='say', description='Say a word.')\n"
        "async def say(word: str = 'red'):\n"
        "    answer = yield f'say {word}'\n"
        "    yield min(1.0, len(str(answer)) / 30)\n"
    )


def test_a_folder_becomes_a_version_of_an_environment(official, server):
    official.write("env.py", named("shop"))
    official.write("notes/readme.txt", "taken along")
    official.write(".env", "SECRET=1\n")
    first = official.json("deploy", ".", "--yes", "--no-env")
    assert (first["success"], first["status"], first["name"]) == (True, "SUCCEEDED", "shop")
    (row,) = registered(server, "shop")
    assert row["id"] == first["registry_id"]
    assert row["latest_build"]["version"] == "1"
    manifest = first["details"]["manifest"]
    assert [task["id"] for task in manifest["tasks"]] == ["say"]
    assert manifest["tasks"][0]["args"]["properties"]["word"]["default"] == "red"

    again = official.json("deploy", ".", "--yes", "--no-env")
    assert again["registry_id"] == first["registry_id"]
    assert registered(server, "shop")[0]["latest_build"]["version"] == "2"


def test_the_build_is_shown_as_it_goes(official):
    official.write("env.py", named("shown"))
    process = official.start("deploy", ".", "--yes", "--no-env")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    assert "SUCCEEDED" in out + err


def test_an_environment_that_cannot_be_loaded_fails_its_build_and_says_why(official, server):
    official.write("env.py", named("unbuilt") + "\nraise ValueError('no such table: shelves')\n")
    failed = official.json("deploy", ".", "--yes", "--no-env", exit_code=1)
    assert not failed["success"]
    assert failed["status"] == "FAILED"
    assert "no such table: shelves" in json.dumps(failed["details"])
    assert all(not row.get("latest_build") for row in registered(server, "unbuilt"))


def test_a_folder_is_linked_to_what_was_deployed(official, server):
    official.write("env.py", named("linked"))
    deployed = official.json("deploy", ".", "--yes", "--no-env")
    official.write("elsewhere/env.py", named("linked"))
    linked = official.json("sync", "env", "linked", "elsewhere", "--yes")
    assert deployed["registry_id"] in json.dumps(linked)
    config = json.loads((official.folder / "elsewhere/.hud/config.json").read_text())
    assert config["registry_id"] == deployed["registry_id"]
    missing = official.json("sync", "env", "never-deployed", "--yes", exit_code=1)
    assert missing["error"] == "not_found"
