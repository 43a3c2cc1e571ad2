"""The server: pages, a JSON API, a reconciliation service and MCP over one work folder."""
