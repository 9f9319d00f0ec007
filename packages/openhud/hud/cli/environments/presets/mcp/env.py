"""TITLE: the tools of an MCP server, started for each run.

Try it:   hud eval FOLDER/tasks.py FOLDER/agent.py --all
"""

import sys
from pathlib import Path

from hud import Environment

env = Environment("NAME")
inventory = env.connect_mcp(
    [sys.executable, str(Path(__file__).parent / "inventory.py")], name="inventory"
)


@env.template(id="restock", description="Order what is missing.")
async def restock(item: str, wanted: int):
    yield f"See to it that exactly {wanted} of the item {item} are in stock."
    stock = await env.opened(inventory).call("in_stock", {"item": item})
    yield float(stock.text == str(wanted))
