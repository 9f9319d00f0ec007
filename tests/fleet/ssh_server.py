"""A real SSH server on loopback, for tests: each user is a machine, with a home of its own."""

import asyncio
import os
import threading
from pathlib import Path

import asyncssh


class SshServer:
    """Runs commands of any user who has the key, in the folder of the user's name."""

    def __init__(self, root: Path, variables: dict[str, str]) -> None:
        self.root, self.variables = root, variables
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(self.root / "key")
        (self.root / "key").chmod(0o600)
        key.write_public_key(self.root / "key.pub")
        self.thread.start()
        self.server = self._do(self._listen())
        port = self.server.get_port()
        options = f"-p {port} -i {self.root}/key -F none -o StrictHostKeyChecking=no"
        self.command = f"ssh {options} -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        return self

    def __exit__(self, *_):
        self._do(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _listen(self):
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            authorized_client_keys=str(self.root / "key.pub"),
            process_factory=self._serve,
        )

    async def _close(self):
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, process):
        home = self.root / process.get_extra_info("username")
        home.mkdir(exist_ok=True)
        child = await asyncio.create_subprocess_exec(
            "/bin/bash",
            "-c",
            process.command,
            cwd=home,
            env={"PATH": os.environ["PATH"], **self.variables, "HOME": str(home)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        child.stdin.write((await process.stdin.read()).encode())
        child.stdin.close()
        process.stdout.write((await child.stdout.read()).decode())
        process.exit(await child.wait())

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)
