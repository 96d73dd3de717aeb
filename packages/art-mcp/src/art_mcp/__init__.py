"""Make a small model good at using any MCP server, with no data."""
