"""Documentation of the product for coding agents: pages, full-text search, and both over MCP.
`hud docs-mcp` serves it over standard input and output, a server at `/docs/mcp`. Independent of the store.
"""

from hud_dashboard.documentation.library import Found, Library
from hud_dashboard.documentation.pages import Page, Section, read_pages

__all__ = ["Found", "Library", "Page", "Section", "read_pages"]
