"""What a desk can do besides answering: tools of its own, and those of the MCP servers that it is given."""
