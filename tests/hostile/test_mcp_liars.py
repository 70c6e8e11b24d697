"""MCP servers that lie, over their stdin: mounting one and calling its tool ends in time, in words, and within bounds of memory."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.counts import reduced
from tests.hostile.mcp_liar import KINDS
from tests.hostile.test_misbehaving_servers import _workers_peak_mb
from workbench.extensions.servers.mcp import mount
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.tools.shared_workers import shared_workers
from workbench.values import Task, ToolCall
from workbench.values.errors import ToolError

LIAR = str(Path(__file__).parent / "mcp_liar.py")
LIMITS = ToolLimits(deadline_s=3.0, open_s=8.0, workers=1)
LATE_S = 8.0  # for two deadlines and what ends with them
MOST_MB = 700
QUICK = {"an answer of controls", "a schema 400 deep", "answers with another id"}


@pytest.fixture(scope="module", autouse=True)
def no_worker_is_left():
    shared_workers().shutdown()  # of other tests, whose peaks are not ours
    yield
    shared_workers().shutdown()


def tried(kind: str) -> str:
    """What came of a server of this kind: the words of an error, or of the tool."""
    try:
        mounted = mount([sys.executable, "-I", "-S", LIAR, kind], limits=LIMITS)
    except ToolError as error:
        return f"refused: {error}"
    with closing(mounted), closing(ToolExecutor(mounted.tools, LIMITS, Task("t", "", 0))) as tools:
        [result] = tools.run([ToolCall(mounted.tools[0].name, {})])
        return f"{result.error}: {result.text}"


@pytest.mark.parametrize("kind", reduced(KINDS, QUICK))
def test_a_server_that_lies_costs_no_more_than_its_deadline(kind):
    started = time.monotonic()
    words = tried(kind)
    assert time.monotonic() - started < LIMITS.deadline_s + LIMITS.open_s + LATE_S
    assert _workers_peak_mb() < MOST_MB
    assert len(words) < 20_000


def test_a_list_without_end_is_refused_for_its_size():
    assert "lists tools without end" in tried("lists for ever")
