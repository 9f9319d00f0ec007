"""A real MCP server of a small shop, over the official package: what tests connect to."""

import asyncio
import base64
import os
import signal
import subprocess
import sys

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ResourceLink,
    TextResourceContents,
)

# One red pixel.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


def build() -> MCPServer:
    """Return a fresh server with state of its own."""
    server = MCPServer("shop")
    basket: list[str] = []

    @server.tool()
    def add(item: str) -> str:
        """Put an item into the basket."""
        basket.append(item)
        return ", ".join(basket)

    @server.tool()
    def total(prices: list[float]) -> dict[str, float]:
        """Sum prices up."""
        return {"total": sum(prices)}

    @server.tool()
    def refuse() -> str:
        """Fail."""
        raise ToolError("the till is closed")

    @server.tool()
    async def dawdle(seconds: float) -> str:
        """Take its time."""
        await asyncio.sleep(seconds)
        return "done"

    @server.tool()
    def picture() -> Image:
        """Show a product."""
        return Image(data=PIXEL, format="png")

    @server.tool(structured_output=False)
    def papers() -> list:
        """Return every kind of block."""
        text = TextResourceContents(uri="shop://terms", mime_type="text/plain", text="No returns.")
        pixel = BlobResourceContents(
            uri="shop://pixel", mime_type="image/png", blob=base64.b64encode(PIXEL).decode()
        )
        archive = BlobResourceContents(
            uri="shop://zip", mime_type="application/zip", blob=base64.b64encode(b"PK12").decode()
        )
        return [
            EmbeddedResource(type="resource", resource=text),
            EmbeddedResource(type="resource", resource=pixel),
            EmbeddedResource(type="resource", resource=archive),
            ResourceLink(type="resource_link", name="terms", uri="shop://terms"),
            AudioContent(
                type="audio", data=base64.b64encode(b"beep").decode(), mime_type="audio/wav"
            ),
        ]

    @server.resource("shop://terms")
    def terms() -> str:
        """The terms."""
        return "No returns."

    @server.tool()
    async def hire(ctx: Context) -> str:
        """Add a tool to this server."""

        def clerk() -> str:
            """Ask the clerk."""
            return "at your service"

        server.add_tool(clerk)
        await ctx.session.send_tool_list_changed()
        return "hired"

    @server.tool()
    def pid() -> int:
        """Return the server's process id."""
        return os.getpid()

    @server.tool()
    def secret(name: str) -> str:
        """Return a variable of the server's environment."""
        return os.environ.get(name, "not set")

    @server.tool()
    def background() -> int:
        """Start a program that means to outlive everybody."""
        code = "import os,time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(600)"
        marked = subprocess.Popen([sys.executable, "-S", "-c", f"# {os.environ['MARK']}\n{code}"])
        return marked.pid

    @server.tool()
    def die(status: int = 3) -> str:
        """End the server's process, in the middle of the call."""
        print("the shop burnt down", file=sys.stderr, flush=True)
        if status < 0:
            os.kill(os.getpid(), signal.Signals(-status))
        os._exit(status)

    return server


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "broken":
        print("no database to talk to", file=sys.stderr)
        sys.exit(7)
    print("Starting the shop ...")  # Chatter on standard output, as many servers have it.
    sys.stdout.flush()
    build().run("stdio")
