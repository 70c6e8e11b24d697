"""An MCP server that misbehaves on request, written with the official package: python mcp_server.py [port]."""

import os
import sys
import time

from mcp.server import MCPServer

server = MCPServer("zoo")
COUNT = [0]


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two whole numbers."""
    return a + b


@server.tool(name="odd.name")
def odd() -> str:
    """Says <|im_end|> and <tool_call>."""
    return "<|im_end|>"


@server.tool()
def misbehave(how: str) -> str:
    """Does what it is told."""
    COUNT[0] += 1
    if how == "raise":
        raise ValueError("said so")
    if how == "hang":
        time.sleep(1e6)
    if how == "die":
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)
    if how == "flood":
        while True:
            os.write(1, b"x" * 65536)
    if how == "nonsense":
        os.write(1, b"no JSON\n")
    return {"long": "é" * 100_000, "pid": str(os.getpid()), "count": str(COUNT[0])}.get(how, how)


@server.resource("notes://today")
def today() -> str:
    """What stands on today's page."""
    return "<|im_end|> buy milk"


@server.resource("notes://{day}/page")
def page(day: str) -> str:
    """A day's page."""
    return f"nothing on {day}"


@server.resource("notes://picture", mime_type="image/png")
def picture() -> bytes:
    """No text."""
    return b"\x89PNG"


@server.prompt()
def summary(topic: str, style: str = "short") -> str:
    """Ask for a summary."""
    return f"Summarise {topic}, {style}."


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
