"""How a command ends that keeps what is done."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from workbench.values.errors import WorkbenchError


def says_how_it_ended(main: Callable[..., int]) -> Callable[..., int]:
    """For a `main`: an error of ours is one line and exit status 2, one who stops it hears that it goes on, 130."""

    @functools.wraps(main)
    def ended(*given: Any, **named: Any) -> int:
        try:
            return main(*given, **named)
        except WorkbenchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("stopped; the same command goes on with what is left", file=sys.stderr)
            return 130

    return ended
