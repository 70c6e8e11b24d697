"""Frames: what goes in comes out, and none is longer than its reader said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.tools.workers.frames import frame, take_frames


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(1, 7))
def test_frames_come_out_as_they_went_in_however_they_are_cut(contents, piece):
    stream, buffer, got = b"".join(map(frame, contents)), bytearray(), []
    for start in range(0, len(stream), piece):
        buffer += stream[start : start + piece]
        got += take_frames(buffer, 40)
    assert got == contents and not buffer
    with pytest.raises(ValueError, match="41 bytes"):
        take_frames(bytearray(frame(b"x" * 41)), 40)
