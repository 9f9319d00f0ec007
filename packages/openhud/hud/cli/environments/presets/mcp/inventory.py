"""An MCP server over standard input and output: an inventory of one run."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("inventory")
stock = {"lamp": 2, "chair": 0, "table": 1}


@server.tool()
def in_stock(item: str) -> int:
    """How many of an item are in stock."""
    return stock[item]


@server.tool()
def order(item: str, count: int) -> str:
    """Order more of an item."""
    stock[item] += count
    return f"{stock[item]} in stock"


if __name__ == "__main__":
    server.run()
