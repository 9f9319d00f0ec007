"""Images, references and build contexts that want more than a workspace: each is refused in one sentence, or gets nothing by it."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.container_engines import imported_image, require_engine
from tests.integrations.containers.image_layouts import (
    PROGRAMS,
    link,
    member,
    needs_bubblewrap,
    programs,
    workspace,
    write_layout,
)

from hud import Environment
from hud.environment import Mount
from hud.errors import UsageError
from hud.eval.runtimes.containers.container import ContainerSpec
from hud_integrations.containers import add_image, build_image, engine_image, image

ACCOUNTS = b"root:x:0:0::/root:/bin/sh\nodd:x:seven:7::/srv:/bin/sh\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))


def layers(*more):
    return [[*programs(PROGRAMS), member("etc"), member("etc/passwd", ACCOUNTS), *more]]


REFUSED = [
    {"Env": ["NOVALUE"]},
    {"Env": "PATH=/bin"},
    {"Env": [1]},
    {"Env": ["=value"]},
    {"Env": ["A=b\0c"]},
    {"WorkingDir": "/run/hud/guard"},
    {"WorkingDir": "/run/hud"},
    {"WorkingDir": "/proc/1/root"},
    {"WorkingDir": "/dev/shm"},
    {"WorkingDir": "/sys"},
    {"WorkingDir": "relative"},
    {"WorkingDir": "/a/../../.."},
    {"WorkingDir": 5},
    {"User": ["root"]},
    {"User": "odd"},
    {"User": "-1"},
    {"User": "4294967295"},
    {"User": "99999999999999999999"},
    ["PATH=/bin"],
    "config",
]


@pytest.mark.parametrize("config", REFUSED, ids=str)
def test_a_hostile_configuration_is_refused_in_one_sentence(tmp_path, config):
    with pytest.raises(UsageError) as refused:
        Environment("odd").workspace(image=image(write_layout(tmp_path / "box", layers(), config)))
    assert "\n" not in str(refused.value)


HOSTILE_VARIABLES = {
    "LD_PRELOAD": "/srv/evil.so",
    "LD_LIBRARY_PATH": "/srv",
    "LD_AUDIT": "/srv/evil.so",
    "PYTHONPATH": "/srv",
    "PYTHONHOME": "/srv",
    "PYTHONSTARTUP": "/srv/evil.py",
    "BASH_ENV": "/srv/evil.sh",
    "ENV": "/srv/evil.sh",
    "PATH": "/bin:/usr/bin",
}
EVIL = b"echo evil > /srv/seen\n"


async def looks(box):
    """Play a run in an image whose variables and entry point are its author's: process 1 is ours."""
    async with workspace(box) as (shell, client):
        first = await client.run("cat /proc/1/cmdline; ls /srv")
        assert "/run/hud/supervisor" in first.stdout
        assert "seen" not in (await shell.bash("ls /srv", env={"BASH_ENV": "", "ENV": ""})).stdout
        await shell.write("/srv/ours", "1")
        assert (await shell.read("/srv/ours")) == b"1"


@needs_bubblewrap
async def test_variables_and_the_entry_point_of_an_unpacked_image_start_nothing_of_its_own(
    tmp_path,
):
    config = {
        "Env": [f"{name}={value}" for name, value in HOSTILE_VARIABLES.items()],
        "Entrypoint": ["/bin/sh", "/srv/evil.sh"],
        "Cmd": ["/srv/evil.sh"],
        "User": "root",
    }
    more = [member("srv"), member("srv/evil.sh", EVIL), member("srv/evil.so", b"no library")]
    await looks(image(write_layout(tmp_path / "box", layers(*more), config)))


@pytest.fixture
def hostile_image():
    """An image of the engine with variables, an entry point and a volume of its author's."""
    engine = require_engine()
    more = [member("srv"), member("srv/evil.sh", EVIL), member("srv/evil.so", b"no library")]
    imported_image("hud-tests/hostile:1", layers(*more)[0])
    text = 'FROM hud-tests/hostile:1\nENTRYPOINT ["/bin/sh", "/srv/evil.sh"]\nVOLUME /data\n'
    text += "".join(f"ENV {name}={value}\n" for name, value in HOSTILE_VARIABLES.items())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(text)
        command = [engine.program, "build", "--quiet", "--tag", "hud-tests/hostile:2", folder]
        subprocess.run(command, check=True, capture_output=True)
    return engine_image("hud-tests/hostile:2")


@pytest.mark.slow
async def test_variables_and_the_entry_point_of_a_container_start_nothing_of_its_own(hostile_image):
    await looks(hostile_image)


@pytest.mark.parametrize(
    "reference", ["--privileged", "-v/:/host", "--volume=/:/host", "", "a b", "a\0b", "a\nb"]
)
def test_a_reference_is_no_option_of_the_engine(reference):
    with pytest.raises(UsageError, match="no name of an image"):
        ContainerSpec(reference).arguments("name", "podman")
    with pytest.raises(UsageError, match="no name of an image"):
        engine_image(reference)


@pytest.mark.parametrize(
    "target", ["/run/hud/machine", "/run/hud/guard", "/proc/sys", "/sys/fs", "/dev/sda"]
)
def test_nothing_is_mounted_over_the_sandboxs_own_folders(tmp_path, target):
    with pytest.raises(UsageError, match="of its own"):
        Mount(tmp_path, target)
    with pytest.raises(UsageError, match="of its own"):
        Environment("odd").workspace(folders=[target])


@needs_bubblewrap
@pytest.mark.parametrize(
    "instruction",
    [
        "COPY secret /x",
        "COPY folder/secret /x",
        "COPY folder /x",
        "ADD . /x",
        "COPY deep/up/secret.txt /x",
        "COPY s*t /x",
    ],
)
def test_links_in_a_context_bring_no_file_of_the_machine(tmp_path, instruction):
    (tmp_path / "secret.txt").write_text("sesame")
    add_image(write_layout(tmp_path / "box", layers()), "box:1")
    context = tmp_path / "context"
    (context / "deep").mkdir(parents=True)
    (context / "secret").symlink_to(tmp_path / "secret.txt")
    (context / "folder").symlink_to(tmp_path)
    (context / "deep/up").symlink_to("../..")
    try:
        built = build_image(context, f"FROM box:1\n{instruction}\n")
    except UsageError:
        return
    for place, _, names in os.walk(built.root):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path) and os.path.isfile(path):
                with open(path, "rb") as file:
                    assert b"sesame" not in file.read(), path


@needs_bubblewrap
async def test_links_of_an_image_lead_the_environment_to_no_file_of_the_machine(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("sesame")
    more = [member("srv"), link("srv/file", str(secret)), link("srv/folder", str(tmp_path))]
    box = image(write_layout(tmp_path / "box", layers(*more)))
    async with workspace(box, guest_path="/srv/work") as (shell, client):
        for path in ("/srv/file", "/srv/folder/secret.txt", "/proc/self/root/srv/file"):
            with pytest.raises(FileNotFoundError):
                await shell.read(path)
        await shell.write("/srv/file", "ours")
        await client.run("ln -s /srv/folder here")
        assert "sesame" not in str(await shell.opened.observe())
    assert secret.read_text() == "sesame"
