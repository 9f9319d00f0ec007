"""Four MCP servers over one incident's recording: about 100 tools in all."""
