"""Container images without a daemon: layers are unpacked safely, and become the root of a workspace."""

import os
import re
import tarfile

import pytest
from tests.integrations.containers.image_layouts import (
    link,
    member,
    needs_bubblewrap,
    packed,
    programs,
    workspace,
    write_layout,
)

from hud import Environment
from hud.environment.workspace.sandbox import root_image
from hud.environment.workspace.sandbox.lacking import explained
from hud.errors import EnvironmentFault, UsageError
from hud_integrations.containers import image


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@needs_bubblewrap
async def test_a_shell_runs_inside_the_image_with_its_programs_variables_and_folder(tmp_path):
    layers = [
        [*programs(), member("app"), member("app/data.txt", b"of the image\n")],
        [member("etc"), member("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"), member("root")],
    ]
    config = {"Env": ["GREETING=hello", "PATH=/bin:/usr/bin"], "WorkingDir": "/app"}
    box = image(write_layout(tmp_path / "box", layers, config))
    async with workspace(box) as (shell, client):
        done = await client.run('cat data.txt; echo $GREETING $HOME; id -u; ls / | grep -c "^srv$"')
        assert done.stdout.split("\n")[:4] == ["of the image", "hello /root", "0", "0"], done.stderr
        await client.run("echo changed > data.txt; echo new > /etc/new; rm /bin/touch")
        assert await shell.read("data.txt") == b"changed\n"
        assert (await shell.bash("cat /etc/new")).stdout == "new\n"
        await shell.write("deep/answer.txt", "4")
        await shell.copy_in(tmp_path / "box" / "index.json", "/root/index.json")
        assert (await client.run("cat deep/answer.txt")).stdout == "4"
        assert "manifests" in (await client.run("cat /root/index.json")).stdout
    async with workspace(box) as (_, client):
        assert (await client.run("cat data.txt; ls /bin/touch")).stdout.split("\n")[:2] == [
            *["of the image", "/bin/touch"]
        ]


@needs_bubblewrap
async def test_a_user_in_an_image_has_no_privileges_and_no_files_of_the_machine(tmp_path):
    box = image(write_layout(tmp_path / "box", [programs()]))
    async with workspace(box) as (_, client):
        status = (
            await client.run("grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status")
        ).stdout
        assert set(re.findall(r"Cap...:\s*(\w+)", status)) == {"0" * 16}
        assert re.findall(r"(?:NoNewPrivs|Seccomp):\s*(\d)", status) == ["1", "2"]
        assert (await client.run("echo 1 > /proc/1/oom_score_adj")).exit_status != 0
        assert (await client.run("echo 1 > /proc/sys/kernel/hostname")).exit_status != 0
        assert (await client.run("touch /run/hud/machine/file")).exit_status != 0
        assert (await client.run("cat /etc/resolv.conf; ls /sys /home")).stdout.strip() == "/sys:"
        filled = await client.run("cat /dev/zero > /etc/filler")
        assert "No space left" in filled.stderr


def test_a_whiteout_and_an_opaque_folder_hide_what_lower_layers_have(tmp_path):
    lower = [
        member("a"),
        member("a/gone", b"1"),
        member("b"),
        member("b/gone", b"1"),
        member("c", b"1"),
    ]
    upper = [
        member("b/new", b"2"),
        member("b/.wh..wh..opq", b""),
        member("a/.wh.gone", b""),
        member(".wh.c", b""),
    ]
    root = image(write_layout(tmp_path / "box", [lower, upper])).root
    assert os.listdir(root / "a") == []
    assert os.listdir(root / "b") == ["new"]
    assert not (root / "c").exists()


def test_links_are_those_of_the_image(tmp_path):
    layer = [
        *[member("usr"), member("usr/lib"), link("lib", "/usr/lib"), member("lib/x", b"1")],
        *[
            link("usr/lib/y", "/lib/x", tarfile.LNKTYPE),
            link("usr/up", "../../../../usr/lib"),
            member("usr/up/z", b"2"),
        ],
    ]
    root = image(write_layout(tmp_path / "box", [layer])).root
    assert (root / "usr/lib/x").samefile(root / "usr/lib/y")
    assert (root / "usr/lib/z").read_bytes() == b"2"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ([member("../out", b"1")], "leaves the image"),
        ([member("a/../../out", b"1")], "leaves the image"),
        ([member("a"), member("a/.wh...", b"")], "leaves the image"),
        ([member("a"), member("a/.wh.", b"")], "leaves the image"),
        ([link("passwd", "/etc/passwd", tarfile.LNKTYPE)], "no file of the image"),
        ([link("a", "a"), member("a/b", b"1")], "links do not end"),
        ([member("disk", b"", type=tarfile.BLKTYPE)], "device or pipe"),
        ([link("etc", "/oldroot/etc")], "link at /etc"),
    ],
)
def test_a_hostile_layer_is_refused_and_nothing_remains(tmp_path, home, layer, message):
    with pytest.raises(UsageError, match=message):
        image(write_layout(tmp_path / "box", [layer]))
    assert list((home / "images").iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_a_link_out_of_the_image_leads_to_a_folder_inside(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    layer = [
        link("a", str(outside)),
        member("a/b", b"1"),
        link("c", "../" * 20 + str(outside)[1:]),
        member("c/d", b"1"),
    ]
    root = image(write_layout(tmp_path / "box", [layer])).root
    assert list(outside.iterdir()) == []
    assert (root / str(outside)[1:] / "d").read_bytes() == b"1"


def test_a_layer_that_was_changed_is_refused(tmp_path):
    folder = write_layout(tmp_path / "box", [[member("a", b"1")]])
    for blob in (folder / "blobs/sha256").iterdir():
        if b"ustar" in blob.read_bytes():
            blob.write_bytes(packed([member("a", b"2")]))
    with pytest.raises(UsageError, match="does not have its digest"):
        image(folder)


def test_an_archive_of_docker_save_gives_the_same_image_as_a_folder(tmp_path):
    folder = write_layout(tmp_path / "box", [[member("a", b"1")]], {"User": "7"})
    with tarfile.open(tmp_path / "box.tar", "w") as archive:
        archive.add(folder, ".")
    with tarfile.open(tmp_path / "named.tar", "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder))
    assert image(tmp_path / "named.tar") == image(folder)
    assert image(folder).user == 7


def test_a_layer_that_unpacks_to_more_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("hud_integrations.containers.image_archive.LARGEST_IMAGE_BYTES", 1 << 20)
    folder = write_layout(tmp_path / "box", [[member("a", bytes(2 << 20))]])
    with pytest.raises(UsageError, match="unpacks to more"):
        image(folder)


def test_a_huge_sparse_file_is_refused(tmp_path):
    sparse = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 50)}
    with pytest.raises(UsageError, match="more than 32 GB of files"):
        image(write_layout(tmp_path / "box", [[member("a", b"1", pax_headers=sparse)]]))


def test_what_is_no_image_is_named(tmp_path):
    (tmp_path / "text").write_text("no image")
    with pytest.raises(UsageError, match="no readable image"):
        image(tmp_path / "text")


@needs_bubblewrap
def test_a_workspace_folder_behind_a_link_of_the_image_is_refused(tmp_path):
    box = image(write_layout(tmp_path / "box", [[*programs(), link("desk", "/oldroot")]]))
    with pytest.raises(UsageError, match="leads through a link"):
        Environment("place").workspace(image=box, guest_path="/desk/x")


@needs_bubblewrap
async def test_a_machine_that_cannot_mount_an_overlay_says_why(tmp_path, monkeypatch):
    box = image(write_layout(tmp_path / "box", [programs()]))
    monkeypatch.setitem(root_image._CALLS, os.uname().machine, (116, 119, 117, 157, 400_000, 165))
    with pytest.raises(EnvironmentFault, match="overlay: new namespaces: Function not"):
        async with workspace(box):
            pass
    assert "no sandbox" in explained("overlay: new namespaces: Operation not permitted")
    monkeypatch.setattr(root_image.shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentFault, match="perl-base"):
        box.overlay_command(1, None)
