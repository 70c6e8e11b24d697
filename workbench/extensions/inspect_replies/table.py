"""The checks of what is shown and said, by their ids."""

from __future__ import annotations

from workbench.extensions.inspect_replies.bearings import check_bearings
from workbench.extensions.inspect_replies.board_lines import check_board_lines
from workbench.extensions.inspect_replies.map_walls import check_late_part
from workbench.extensions.inspect_replies.shown_whole import check_shown

REPLY_CHECKS = {
    "E13": check_board_lines,
    "E23": check_late_part,
    "E31": check_shown,
    "E32": check_bearings,
}
