"""Commands that are called in this process."""

from __future__ import annotations

from workbench import cli


def status_of(words) -> int:
    """The exit status, of the parser's own ends too."""
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as end:
        return end.code
