"""A text as a small picture: what a view without a picture of its own shows where a host drops HTML or its styles."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.look.looks import CARD, INK, MUTED

MOST_LINES = 24
MOST_COLUMNS = 140
# Pixels.
SIZE = 13
MARGIN = 10
LEADING = 17


@lru_cache(maxsize=64)
def text_png(text: str) -> bytes:
    """PNG of four greys, one column of monospaced text; of a long one the beginning, with how much is left out."""
    from PIL import Image, ImageDraw

    lines = [
        line if len(line) <= MOST_COLUMNS else line[: MOST_COLUMNS - 1] + "…"
        for line in text.split("\n")
    ]
    left_out = len(lines) - MOST_LINES
    lines = lines[:MOST_LINES] + ([f"… {left_out} more lines"] if left_out > 0 else [])
    font = _font()
    width = int(max((font.getlength(line) for line in lines), default=0)) + 2 * MARGIN
    image = Image.new("RGB", (max(width, 40), LEADING * len(lines) + 2 * MARGIN), CARD)
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        more = number == MOST_LINES
        draw.text((MARGIN, MARGIN + LEADING * number), line, font=font, fill=MUTED if more else INK)
    written = io.BytesIO()
    image.quantize(4, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


@lru_cache(maxsize=1)
def _font() -> Any:
    """DejaVu's, which comes with matplotlib and has the letters, arrows and boxes that views are written in."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(
        str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSansMono.ttf"), SIZE
    )
