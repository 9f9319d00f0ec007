"""Services of a Compose file run beside the workspace: by name, in order, healthy first, and gone with it."""

import json
import subprocess
import sys

import pytest
from tests.container_engines import imported_image, require_engine
from tests.integrations.containers.image_layouts import (
    PROGRAMS,
    SMALL,
    member,
    programs,
    workspace,
)
from tests.integrations.containers.test_engine_images import (
    containers,
    kill_and_await_removal,
    scratch_folders,
)

from hud.errors import EnvironmentFault, UsageError
from hud_integrations.containers import compose_image
from hud_integrations.containers.compose.compose_file import read_compose

BOX = "hud-tests/services:1"
TOOLS = [*PROGRAMS, "/bin/bash", "/bin/sleep", "/usr/bin/perl", "/bin/cp"]
SERVE = (
    'socket(S,2,1,6); setsockopt(S,1,2,1); bind(S,pack("Sna4x8",2,5432,"\\0\\0\\0\\0")) or die "port in use\\n"; '
    'listen(S,9); open(F,">/ready"); close F; while(accept(C,S)){print C "$ENV{WORD}\\n"; close C}'
)
ASK = "cat < /dev/tcp/db/5432"
DB = {
    "image": BOX,
    "command": ["perl", "-e", SERVE.replace("$", "$$")],
    "environment": ["WORD=served"],
    "ports": ["5432:5432"],
    "healthcheck": {"test": "cat /ready", "interval": "1s", "retries": 60},
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def box():
    return services_image()


def services_image():
    """Store an image with a server's program; returns its reference."""
    require_engine()
    members = [
        *programs(TOOLS),
        member("etc"),
        member("root"),
        member("data"),
        member("data/old", b"1"),
    ]
    return imported_image(BOX, members)


def write(folder, services, **others):
    """Write a Compose file; JSON is YAML."""
    path = folder / "docker-compose.yaml"
    path.write_text(json.dumps({"services": {"main": {"image": BOX}, **services}, **others}))
    return path


async def test_services_reach_each_other_by_name_and_are_gone_at_the_end(box, tmp_path):
    before = containers(), scratch_folders()
    (tmp_path / "seed.txt").write_text("seed\n")
    services = {
        "app": {
            "image": BOX,
            "depends_on": {"db": {"condition": "service_healthy"}},
            "working_dir": "/srv/app",
            "volumes": ["./seed.txt:/srv/app/seed.txt", "./seed.txt:/etc/seed.txt:ro", "kept:/data"],
            "command": [
                "bash",
                "-c",
                f"{{ {ASK}; cat seed.txt /etc/seed.txt; cat /data/old; pwd; }} > /srv/app/seen; exec perl -e "
                "'socket(S,2,1,6); bind(S,pack(\"Sna4x8\",2,80,\"\\0\\0\\0\\0\")); listen(S,9); "
                "while(accept(C,S)){open(F,\"/srv/app/seen\"); print C <F>; close C}'",
            ],
        },
        "db": DB,
    }  # fmt: skip
    image = compose_image(write(tmp_path, services, volumes={"kept": None}))
    async with workspace(image) as (shell, client):
        assert (await client.run(ASK, timeout=20)).stdout == "served\n"
        seen = await client.run(
            "until cat < /dev/tcp/app/80; do sleep 0.1; done 2>/dev/null", timeout=30
        )
        assert seen.stdout == "served\nseed\nseed\n1/srv/app\n"
        assert len(containers() - before[0]) == 3
        assert "perl" not in (await client.run("cat /proc/[0-9]*/cmdline")).stdout
        out = await client.run("ls /sys/class/net; (echo > /dev/tcp/1.1.1.1/80) 2>&1")
        assert out.stdout.startswith("lo\n")
        assert "unreachable" in out.stdout
        await shell.end_all()
        assert (await shell.bash(ASK, timeout=20)).stdout == "served\n", (
            "graders can use the services"
        )
    assert containers() == before[0]
    assert scratch_folders() <= before[1]


async def test_a_service_that_fails_says_why_and_leaves_nothing(box, tmp_path):
    before = containers()
    failing = {"image": BOX, "command": "bash -c 'echo no disk; exit 3'"}
    for services, sentence in (
        ({"db": {**failing, "healthcheck": {"test": ["CMD", "true"]}}}, "ended with status 3: no disk"),
        ({"db": failing, "app": {"image": BOX, "command": "sleep 60", "depends_on": {"db": {"condition": "service_completed_successfully"}}}}, "ended with status 3: no disk"),
        ({"db": {**DB, "healthcheck": {"test": "echo not yet; exit 1", "interval": "1s", "retries": 1}}}, "not healthy within 1 s: its health check had status 1: not yet"),
    ):  # fmt: skip
        with pytest.raises(EnvironmentFault, match=f"Service 'db': .*{sentence}"):
            async with workspace(compose_image(write(tmp_path, services))):
                pass
        assert containers() == before


async def test_a_service_restarts_and_one_that_completes_is_waited_for(box, tmp_path):
    services = {
        "setup": {"image": BOX, "command": "bash -c 'sleep 0.5; echo done'"},
        "db": {**DB, "restart": "on-failure", "depends_on": {"setup": {"condition": "service_completed_successfully"}},
               "command": ["bash", "-c", "if [ -e /once ]; then exec perl -e \"$$0\"; fi; echo > /once; exit 1", SERVE.replace("$", "$$")]},
    }  # fmt: skip
    async with workspace(compose_image(write(tmp_path, services))) as (_, client):
        assert (await client.run(ASK, timeout=20)).stdout == "served\n"


async def test_the_health_check_and_command_of_a_built_image_are_honoured(box, tmp_path):
    (tmp_path / "db").mkdir()
    (tmp_path / "db/server.pl").write_text(f"sleep 1; {SERVE}")
    (tmp_path / "db/Dockerfile").write_text(
        f'FROM {BOX}\nARG SAID\nENV WORD=$SAID\nCOPY server.pl /server.pl\nENTRYPOINT ["perl"]\nCMD ["/server.pl"]\n'
        "HEALTHCHECK --interval=1s --retries=60 CMD cat /ready\n"
    )
    service = {"build": {"context": "db", "args": {"SAID": "built"}}}
    async with workspace(compose_image(write(tmp_path, {"db": service}))) as (_, client):
        assert (await client.run(ASK, timeout=20)).stdout == "built\n"


SCRIPT = """
import asyncio, sys
from hud import Environment
from hud_integrations.containers import compose_image
env = Environment("killed")
env.workspace(image=compose_image(sys.argv[1]))
async def main():
    async with env.run():
        print("up", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def test_a_killed_process_leaves_no_service_behind(box, tmp_path):
    before = containers()
    path = write(tmp_path, {"db": DB})
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    assert len(containers() - before) == 2
    kill_and_await_removal(process, before)


async def test_the_network_of_a_workspace_is_its_own_with_services_too(box, tmp_path):
    image = compose_image(write(tmp_path, {"db": DB}))
    async with workspace(image, network=True, allowed_hosts=["one.example"], limits=SMALL) as (_, client):  # fmt: skip
        assert (await client.run(ASK, timeout=20)).stdout == "served\n"
        request = "exec 3<>/dev/tcp/127.0.0.1/PORT; printf 'CONNECT two.example:443 HTTP/1.1\r\n\r\n' >&3; cat <&3"
        port = (await client.run("echo ${https_proxy##*:}")).stdout.strip("/\n")
        assert "403" in (await client.run(request.replace("PORT", port), timeout=10)).stdout


REFUSED = {
    "services.db.privileged": {"privileged": True},
    "services.db.network_mode": {"network_mode": "host"},
    "services.db.cap_add": {"cap_add": ["SYS_ADMIN"]},
    "services.db.devices": {"devices": ["/dev/kvm"]},
    "services.db.secrets": {"secrets": ["key"]},
    "services.db.extra_hosts": {"extra_hosts": ["a:1.2.3.4"]},
    "services.db.deploy.replicas": {"deploy": {"replicas": 2}},
    "services.db.deploy.resources.reservations": {"deploy": {"resources": {"reservations": {"devices": [{}]}}}},
    "services.db.build.secrets": {"build": {"context": ".", "secrets": ["key"]}},
    "services.db.volumes: /etc/passwd is no file beside it": {"volumes": ["/etc/passwd:/x:ro"]},
    "services.db.volumes: ../x is no file beside it": {"volumes": ["../x:/x"]},
    "the variable TOKEN has no default": {"environment": {"KEY": "${TOKEN}"}},
    "the variable TOKEN has no value": {"environment": ["TOKEN"]},
    "the volume shared of several services": {"volumes": ["shared:/x"]},
    "services.db.depends_on: the condition soon": {"depends_on": {"main": {"condition": "soon"}}},
    "depends_on of db is never met": {"depends_on": ["missing"]},
    "services.db.restart = often": {"restart": "often"},
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_a_workspace_cannot_have_is_refused_by_name(tmp_path, sentence):
    shared = {"image": BOX, "volumes": ["shared:/y"]}
    path = write(tmp_path, {"db": {"image": BOX, **REFUSED[sentence]}, "other": shared})
    with pytest.raises(UsageError, match=f"docker-compose.yaml: .*{sentence}"):
        read_compose(path)


def test_the_rest_of_a_file_is_read(tmp_path):
    (tmp_path / "vars.env").write_text("# of the image\nA=1\nB='two words'\n")
    service = {
        "image": "${IMAGE:-box:2}",
        "entrypoint": "run --now",
        "env_file": "vars.env",
        "environment": {"B": 3, "C": True, "PRICE": "$$5"},
        "mem_limit": "1.5g",
        "deploy": {"resources": {"limits": {"cpus": "0.5"}}},
        "healthcheck": {"test": ["CMD", "check"], "interval": "1m30s", "timeout": "500ms"},
        "networks": {"back": {"aliases": ["database"]}},
        "user": 7,
    }
    extra = {"image": "x", "profiles": ["debug"], "depends_on": ["db"]}
    services = {"app": {"image": "a", "depends_on": ["db"]}, "db": service, "extra": extra}
    read = read_compose(write(tmp_path, services, networks={"back": {}}, version="3"))
    app_names = [service.name for service in read.others]
    assert app_names == ["db", "app"], "each after those that it depends on, without profiles"
    db = read.others[0]
    assert (db.image, db.entrypoint, db.user) == ("box:2", ("run", "--now"), "7")
    assert db.variables == {"A": "1", "B": "3", "C": "true", "PRICE": "$5"}
    assert (db.memory_mb, db.processors) == (1536.0, 0.5)
    assert db.healthcheck == {
        "Test": ["CMD", "check"], "Retries": 0, "Interval": 90 * 10**9, "Timeout": 5 * 10**8
    }  # fmt: skip
    assert sorted(read.names) == ["app", "database", "db", "main"]


@pytest.mark.parametrize(
    "text", ["services: [", "services: 3", "- 1", "services: {db: {command: 5}}"]
)
def test_a_malformed_file_is_one_sentence(tmp_path, text):
    path = tmp_path / "compose.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"compose\.yaml"):
        read_compose(path)
