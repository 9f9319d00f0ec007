"""Containers of docker or podman: commands, files and limits inside, and environments that an image serves."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest
from tests.container_engines import TINY, machine_mounts, require_engine

from hud import RuntimeConfig, RuntimeResources, Task
from hud.environment.templates.runtime_config import RuntimeGPU
from hud.errors import EnvironmentFault, InfrastructureFault, UsageError
from hud.eval.rollouts import rollout
from hud.eval.runtimes.containers.contained_environment import serving_container
from hud.eval.runtimes.containers.container import ContainerSpec, container
from hud.eval.runtimes.containers.health_check import parse_health_check
from hud.trace.recording.recorder import NullRecorder
from hud_integrations.containers import ContainerRuntime
from hud_integrations.containers.container_runtime import _gpus

SOURCE = """
import os
from hud import Environment
env = Environment("shop")

@env.tool
async def leave() -> None:
    os._exit(3)

@env.template()
async def where():
    answer = yield os.environ.get("TOKEN", "none")
    yield 1.0 if answer == "seen" else 0.0
"""


@pytest.fixture
def spec():
    require_engine()
    return ContainerSpec(TINY, ["/bin/sleep", "600"], mounts={"/usr": "/usr"}, network="none")


@pytest.mark.slow
async def test_commands_files_and_variables_are_inside(spec, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "names.txt").write_text("joe\n")
    async with container(spec) as contained:
        await contained.copy_in(tmp_path / "data", "/tmp")
        listed = await contained.execute(
            ["/bin/sh", "-c", "cat names.txt; echo $WORD; cat; ls /sys/class/net; exit 3"],
            cwd="/tmp",
            stdin=b"piped\n",
            variables={"WORD": "hello"},
        )
        assert (listed.exit_code, listed.stdout.split()) == (3, ["joe", "hello", "piped", "lo"])
        await contained.execute(["/bin/sh", "-c", "echo ada > /tmp/out.txt"])
        await contained.copy_out("/tmp/out.txt", tmp_path / "out.txt")
        assert (tmp_path / "out.txt").read_text() == "ada\n"
    with pytest.raises(InfrastructureFault):
        await contained.state()


@pytest.mark.slow
async def test_what_was_left_running_and_what_takes_too_long_is_killed(spec):
    async with container(spec) as contained:
        await contained.execute(["/bin/sh", "-c", "sleep 500 >/dev/null 2>&1 & echo started"])
        commands = ["/bin/sh", "-c", "cat /proc/[0-9]*/cmdline"]
        assert "sleep\x00500" in (await contained.execute(commands)).stdout
        await contained.end_all()
        assert "sleep\x00500" not in (await contained.execute(commands)).stdout
        await contained.end_all()  # With nothing left to kill.
        assert (await contained.execute(["/bin/sleep", "60"], seconds=0.5)).exit_code is None
        assert "sleep\x0060\x00" not in (await contained.execute(commands)).stdout


@pytest.mark.slow
async def test_memory_and_processes_are_limited(spec):
    async with container(replace(spec, memory_mb=64, processes=20)) as contained:
        hungry = await contained.execute(["/usr/bin/tail", "/dev/zero"], seconds=60)
        assert hungry.exit_code not in (0, None)
        forks = "for n in $(seq 60); do sleep 5 & done"
        assert "fork" in (await contained.execute(["/bin/sh", "-c", forks], seconds=30)).stderr


@pytest.mark.slow
async def test_a_container_that_cannot_start_is_removed(spec):
    engine = require_engine()
    with pytest.raises(InfrastructureFault, match="no such file"):
        async with container(replace(spec, command=["/bin/missing"])):
            pass
    assert "/bin/missing" not in await engine.call("ps", "--all", "--format", "{{.Command}}")


def test_values_of_variables_are_not_arguments():
    arguments = ContainerSpec("box", variables={"KEY": "secret-1"}, processors=0.5).arguments(
        "mine", "podman"
    )
    assert arguments == [
        "run",
        "--detach",
        "--pull=never",
        "--name",
        "mine",
        "--cpus",
        "0.5",
        "--env",
        "KEY",
        "box",
    ]
    with pytest.raises(UsageError, match="'all' or 'none'"):
        ContainerSpec("box", network="some")


def test_gpus_are_options_of_the_engine_and_their_type_is_refused():
    spec = ContainerSpec("box", gpus=2)
    assert spec.arguments("mine", "docker")[-3:] == ["--gpus", "2", "box"]
    devices = ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1", "box"]
    assert spec.arguments("mine", "podman")[-3:] == devices
    assert _gpus("where", RuntimeResources(gpu=RuntimeGPU(count=2))) == 2
    with pytest.raises(UsageError, match="GPUs of type 'H100'"):
        _gpus("where", RuntimeResources(gpu=RuntimeGPU(type="H100")))


def test_a_health_check_is_read_as_dockerfiles_have_it():
    check = parse_health_check(
        {"Test": ["CMD-SHELL", "true"], "Interval": 2 * 10**9, "Retries": 4, "StartPeriod": 10**9}
    )
    assert (check.argv, check.seconds, check.timeout_seconds) == (
        ["/bin/sh", "-c", "true"],
        9.0,
        30.0,
    )
    assert parse_health_check({"Test": ["CMD", "/bin/true", "a"], "Timeout": 10**9}).argv == [
        "/bin/true",
        "a",
    ]
    assert parse_health_check({"Test": ["CMD", "/bin/true"]}).seconds == 90.0
    assert [
        parse_health_check(document) for document in (None, {}, {"Test": ["NONE"]}, {"Test": []})
    ] == [None] * 4


@pytest.mark.slow
async def test_an_image_s_health_check_is_waited_for_and_bounded(shop):
    engine = require_engine()
    text = (shop / "Dockerfile.hud").read_text()
    check = "HEALTHCHECK --interval=1s --retries={} CMD {}\n"
    runtime = ContainerRuntime(shop / "env.py", mounts=machine_mounts())
    task = Task(env="shop", id="where")
    (shop / "Dockerfile.hud").write_text(
        text + check.format(30, "test -e /tmp/ready || { touch /tmp/ready; exit 1; }")
    )
    run = await rollout(task, seen, runtime=runtime, recorder=NullRecorder())
    assert run.reward == 1.0, run.trace.error
    (shop / "Dockerfile.hud").write_text(text + check.format(1, "echo no database; exit 3"))
    with pytest.raises(
        EnvironmentFault, match=r"hud/.*: It was not healthy within 1 s: .* status 3: no database"
    ):
        async with runtime(task):
            pass
    assert shop.name not in await engine.call("ps", "--all", "--format", "{{.Image}}")


@pytest.fixture
def shop(tmp_path):
    """A folder with an environment and a Dockerfile.hud of an image that serves it."""
    require_engine()
    (tmp_path / "root").mkdir()
    (tmp_path / "env.py").write_text(SOURCE)
    command = f'"{sys.executable}", "-m", "hud.environment.channel", "/env/env.py", "--host", "0.0.0.0", "--port", "8765"'  # fmt: skip
    text = f"FROM {TINY}\nCOPY env.py /env/env.py\nENV HOME=/tmp PATH=/usr/bin\nCMD [{command}]\n"
    (tmp_path / "Dockerfile.hud").write_text(text)
    return tmp_path


async def seen(run):
    assert run.prompt_text == "none"
    run.trace.content = "seen"


@pytest.mark.slow
@pytest.mark.parametrize("network", ["all", "none"])
async def test_an_environment_in_an_image_plays_with_a_network_and_without(shop, network):
    runtime = ContainerRuntime(shop / "env.py", network=network, mounts=machine_mounts())
    task = Task(env="shop", id="where")
    task.runtime_config = RuntimeConfig(resources=RuntimeResources(memory_mb=512, cpu=2)).model_dump(exclude_none=True)  # fmt: skip
    run = await rollout(task, seen, runtime=runtime, recorder=NullRecorder())
    assert run.reward == 1.0, run.trace.error


ASK = """
import os, socket, sys
proxy = socket.create_connection((os.environ["https_proxy"].split("/")[2].split(":")[0], 3128))
proxy.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
answer = b"".join(iter(lambda: proxy.recv(1000), b"")).split()
print(answer[1].decode(), answer[-1].decode())
"""


@pytest.mark.slow
async def test_allowed_hosts_are_all_that_a_container_reaches(shop):
    served = await asyncio.start_server(lambda _, writer: (writer.write(b"hello"), writer.close()), "127.0.0.1", 0)  # fmt: skip
    address = f"127.0.0.1:{served.sockets[0].getsockname()[1]}"
    image = await ContainerRuntime(shop / "env.py")._built("where")
    spec = ContainerSpec(
        image, mounts=machine_mounts(), network="none", allowed_hosts=[address, "*.example.org"]
    )
    async with served, serving_container(spec) as (contained, _, _):

        async def ask(host):
            done = await contained.execute(["python3", "-c", ASK, host])
            return done.stdout.split()

        assert await ask(address) == ["200", "hello"]
        assert (await ask("127.0.0.1:1"))[0] == "403"
        assert (await ask("example.com:443"))[0] == "403"
        devices = await contained.execute(["/bin/sh", "-c", "ls /sys/class/net"])
        assert devices.stdout == "lo\n"
    runtime = ContainerRuntime(
        shop / "env.py", network="none", allowed_hosts=[address], mounts=machine_mounts()
    )
    run = await rollout(Task(env="shop", id="where"), seen, runtime=runtime, recorder=NullRecorder())  # fmt: skip
    assert run.reward == 1.0, run.trace.error
    with pytest.raises(UsageError, match="give network='none', too"):
        ContainerRuntime(allowed_hosts=["example.org"])


@pytest.mark.slow
async def test_containers_are_up_before_a_rollout_and_removed_at_the_end(shop):
    engine = require_engine()
    runtime = ContainerRuntime(shop / "env.py", network="none", mounts=machine_mounts(), spares=2)
    names = ("ps", "--format", "{{.Names}}")
    before = set((await engine.call(*names)).split())
    task = Task(env="shop", id="where")
    try:
        for _ in range(3):
            run = await rollout(task, seen, runtime=runtime, recorder=NullRecorder())
            assert run.reward == 1.0, run.trace.error
        async with asyncio.timeout(60):
            while len(set((await engine.call(*names)).split()) - before) < 2:  # noqa: ASYNC110 - nothing is notified
                await asyncio.sleep(0.1)
    finally:
        await runtime.aclose()
    assert set((await engine.call(*names)).split()) == before


@pytest.mark.slow
async def test_the_image_of_a_task_is_run_and_one_that_is_not_here_is_no_agents_failure(shop):
    runtime = ContainerRuntime(mounts=machine_mounts())
    image = await ContainerRuntime(shop / "env.py")._built("where")
    task = Task(env="shop", id="where", runtime_config={"image": image})
    run = await rollout(task, seen, runtime=runtime, recorder=NullRecorder())
    assert run.reward == 1.0, run.trace.error
    task = Task(env="shop", id="where", runtime_config={"image": "hud-tests/missing:1"})
    with pytest.raises(InfrastructureFault):
        async with runtime(task):
            pass


async def test_a_task_without_an_image_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"has no image: name one .* Dockerfile\.hud"):
        async with ContainerRuntime(tmp_path / "env.py")(Task(env="shop", id="where")):
            pass
