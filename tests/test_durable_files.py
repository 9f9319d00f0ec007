"""Files are replaced whole, appended to by whole lines, and written through one module wherever a HUD_HOME has them."""

from __future__ import annotations

import ast
import os

import pytest

from hud.durable_files import (
    append_lines,
    make_folder,
    open_lock,
    replaced_file,
    write_file,
    write_first,
)
from hud.errors import NotFoundError, StoreError
from hud_platform.access.secrets import Secrets
from tests.sources import folder_of, place, rooms

ROOMS = (
    "hud/benchmarks/baseline",
    "hud/cli/platform",
    "hud/client",
    "hud/engine/model_files",
    "hud/fleet",
    "hud/trace",
    "hud/train",
    *(room for room in rooms() if room.startswith("hud_platform/")),
)
"""Rooms that write into a HUD_HOME."""
FLUSHED_LATER = {
    "hud/client/archives.py": "an archive in memory or of an upload",
    "hud/fleet/builds/archives.py": "part of a build",
    "hud/fleet/builds/build_cache.py": "part of a build",
    "hud/fleet/builds/shared_packages.py": "part of a build",
    "hud_platform/environments/packed_builds.py": "a temporary file",
    "hud_platform/environments/virtual_environment.py": "part of a build",
    "hud_platform/models/adapter_export.py": "an export into the caller's folder",
    "hud_platform/models/whole_model.py": "an export into the caller's folder",
    "hud_platform/exports/model_card.py": "an export into the caller's folder",
    "hud/engine/model_files/named_models.py": "a temporary file for pip",
    "hud_platform/models/checkpoint_files.py": "part of a checkpoint",
    "hud_platform/models/backend_models.py": "part of a model's base",
    "hud_platform/store/blobs.py": "an upload to a bucket",
    "hud/train/monitoring/step_profile.py": "a trace at the path that a user names",
}
"""Files that write by themselves: into a folder that is flushed as a whole, or what need not last."""


def writes(tree: ast.AST) -> bool:
    """True where a syntax tree writes a file by other means than `hud.durable_files`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        texts = [
            value.value
            for value in [*node.args, *(keyword.value for keyword in node.keywords)]
            if isinstance(value, ast.Constant) and isinstance(value.value, str)
        ]
        opened = name in ("open", "fdopen") and any(
            len(text) < 4 and set(text) & set("wax") for text in texts
        )
        if opened or name in ("write_text", "write_bytes", "copyfile"):
            return True
    return False


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "folder" / "a"
    write_file(path, b"old", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(RuntimeError), replaced_file(path) as file:
        file.write(b"half of the n")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == ["a"]


def test_the_first_of_several_writers_stays(tmp_path):
    write_first(tmp_path / "a", b"first")
    write_first(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_line_that_a_crash_cut_off_is_ended_before_the_next_one(tmp_path):
    path = tmp_path / "lines"
    append_lines(path, b"one\ntw")
    append_lines(path, b"three\n")
    assert path.read_bytes() == b"one\ntw\nthree\n"


def test_a_folder_is_made_with_those_above_it(tmp_path):
    make_folder(tmp_path / "a" / "b", 0o700)
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_rooms_that_write_into_a_home_write_durably():
    found = {
        place(path)
        for room in ROOMS
        for path in folder_of(room).rglob("*.py")
        if writes(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(FLUSHED_LATER)


@pytest.mark.parametrize(
    "code", ["path.write_text('a')", "open(path, 'w')", "path.open(mode='ab')"]
)
def test_a_writer_is_noticed(code):
    assert writes(ast.parse(code))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("broken", ["folder", "link", "pipe"])
def test_a_lock_that_is_no_file_is_one_sentence(tmp_path, broken):
    path = tmp_path / "x.lock"
    if broken == "folder":
        path.mkdir()
    elif broken == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "absent" / "lock")
    with pytest.raises(StoreError, match=r"x\.lock (cannot be opened: .*\. Remove it|is no file)"):
        open_lock(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("broken", ["folder", "pipe"])
def test_lines_are_appended_to_a_file_alone(tmp_path, broken):
    path = tmp_path / "lines"
    path.mkdir() if broken == "folder" else os.mkfifo(path)
    with pytest.raises(StoreError, match=r"lines is no file"):
        append_lines(path, b"one\n")


def test_a_folder_in_the_place_of_a_file_is_one_sentence(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(StoreError, match=r"a\.json is a folder where a file belongs\."):
        write_file(tmp_path / "a.json", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"], "nothing is left over"


def test_a_secret_that_is_a_folder_is_one_sentence(tmp_path):
    secrets = Secrets(tmp_path, "team")
    place = tmp_path / "secrets" / "team" / "MY_API_KEY"
    place.mkdir(parents=True)
    for change in (lambda: secrets.set("MY_API_KEY", "v"), lambda: secrets.remove("MY_API_KEY")):
        with pytest.raises(StoreError, match="MY_API_KEY is a folder"):
            change()
    place.rmdir()
    with pytest.raises(NotFoundError, match="no key MY_API_KEY"):
        secrets.remove("MY_API_KEY")


@pytest.mark.parametrize("kind", ["file", "loop", "lost link", "pipe"])
def test_what_stands_in_the_place_of_a_folder_is_one_sentence(tmp_path, kind):
    place = tmp_path / "secrets"
    if kind == "file":
        place.write_bytes(b"x")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(place if kind == "loop" else tmp_path / "lost")
    with pytest.raises(StoreError, match=r"secrets is no folder\. Move it away\."):
        make_folder(place / "team")
    with pytest.raises(StoreError, match=r"secrets is no folder\. Move it away\."):
        Secrets(tmp_path, "team").set("MY_API_KEY", "v")
    with pytest.raises((StoreError, NotFoundError)):
        Secrets(tmp_path, "team").remove("MY_API_KEY")
