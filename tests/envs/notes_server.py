"""An MCP server with state, written with the official package: notes in a folder. python notes_server.py FOLDER"""

import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("notes")
FOLDER = Path(sys.argv[1])


@server.tool()
def add_note(title: str, text: str) -> str:
    """Write a note."""
    (FOLDER / f"{title}.txt").write_text(text)
    return f"wrote {title}"


@server.tool()
def list_notes() -> list[str]:
    """The titles of all notes."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


@server.resource("notes://{title}")
def note(title: str) -> str:
    """The text of a note."""
    return (FOLDER / f"{title}.txt").read_text()


if __name__ == "__main__":
    server.run("stdio")
