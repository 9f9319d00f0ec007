"""The desk of whoever is on call: four MCP servers over one incident's recording, about 100 tools in all."""
