"""Tools behind a server or an index: MCP tools, dense retrieval, a search server and its client."""
