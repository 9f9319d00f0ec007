"""`SSHClient` against a server that is not ours, as other makers' environments have: `asyncssh` on this machine."""

import asyncio

import asyncssh
import pytest

from hud.agents.native.bash import BashTool
from hud.agents.native.editor import EditorTool
from hud.capabilities import Capability
from hud.capabilities.shell.ssh import SSHClient
from hud.errors import EnvironmentFault, InfrastructureFault


async def execute(process):
    """Run what is asked for in bash, the client's streams its own."""
    child = await asyncio.create_subprocess_exec(
        *["bash", "-c", process.command],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    feeding = asyncio.ensure_future(pass_on(process.stdin, child.stdin))
    await pass_on(child.stdout, process.stdout)
    process.exit(await child.wait())
    feeding.cancel()


async def pass_on(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
    writer.write_eof()


@pytest.fixture
async def offered(tmp_path):
    """What such a server announces, and the server."""
    host, own = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[host],
        authorized_client_keys=asyncssh.import_authorized_keys(own.export_public_key().decode()),
        process_factory=execute,
        sftp_factory=True,
        encoding=None,
    )
    (tmp_path / "key").write_bytes(own.export_private_key())
    yield Capability.ssh(
        url=f"ssh://127.0.0.1:{server.get_port()}",
        user="somebody",
        host_pubkey=host.export_public_key().decode(),
        client_key_path=str(tmp_path / "key"),
        cwd=str(tmp_path),
        shell="bash",
    )
    server.close()
    await server.wait_closed()


@pytest.fixture
async def client(offered):
    client = await SSHClient.connect(offered)
    yield client
    await client.close()


async def test_commands_files_and_tools_work_there_too(client, tmp_path):
    done = await client.run("pwd; cat; exit 4", input="given")
    assert (done.exit_status, done.stdout) == (4, f"{tmp_path}\ngiven")
    await client.write("a/b/c.txt", "text")
    assert (tmp_path / "a/b/c.txt").read_text() == "text"
    assert await client.is_folder("a")
    assert not await client.exists("b")
    bash = BashTool(client)
    await bash.call({"command": "cd a; here=1"})
    assert (await bash.call({"command": "pwd; echo $here"})).content[0].text == f"{tmp_path}/a\n1"
    edited = await EditorTool(client).call(
        {"command": "str_replace", "path": "a/b/c.txt", "old_str": "text", "new_str": "more"}
    )
    assert not edited.is_error
    assert await client.read("a/b/c.txt") == b"more"
    assert "ended with status 5" in (await bash.call({"command": "exit 5"})).content[0].text


async def test_a_server_with_another_key_is_not_trusted(offered):
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    changed = Capability.ssh(url=offered.url, **{**offered.params, "host_pubkey": other})
    with pytest.raises(EnvironmentFault, match="refuses the login"):
        await SSHClient.connect(changed)


async def test_what_is_announced_wrongly_is_named(offered, tmp_path):
    (tmp_path / "nonsense").write_text("no key")
    for wrong in (
        {"client_key_path": str(tmp_path / "nowhere")},
        {"client_key_path": str(tmp_path / "nonsense")},
        {"host_pubkey": "nonsense"},
    ):
        with pytest.raises(EnvironmentFault, match="cannot be read"):
            await SSHClient.connect(Capability.ssh(url=offered.url, **{**offered.params, **wrong}))
    with pytest.raises(EnvironmentFault, match="no address"):
        await SSHClient.connect(Capability.ssh(url="nowhere", **offered.params))


async def test_where_nobody_listens_the_way_there_is_broken(offered, unused_tcp_port):
    nobody = Capability.ssh(url=f"ssh://127.0.0.1:{unused_tcp_port}", **offered.params)
    with pytest.raises(InfrastructureFault, match="cannot be reached"):
        await SSHClient.connect(nobody)
