"""The product's own documentation, for coding agents: its pages, a search over them, and both over MCP.

`hud docs-mcp` serves it at standard input and output, a server at `/docs/mcp`. It knows nothing of the store.
"""

from hud.platform.documentation.library import Found, Library
from hud.platform.documentation.pages import Page, Section, read_pages

__all__ = ["Found", "Library", "Page", "Section", "read_pages"]
