"""Drawing with matplotlib takes most of a view's time: only `test_views_pictures.py` does it, elsewhere PNGs are empty."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def pictures(request):
    if request.module.__name__ == "test_views_pictures":
        yield
        return
    import workbench.look.evaluation as evaluation
    import workbench.look.html as html
    import workbench.look.png as png
    from workbench.look.text_png import text_png

    drawn_by = html.png_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(png, "plots_drawing", lambda *args, **more: None)
        patch.setattr(evaluation, "_drawing", lambda *args, **more: None)
        patch.setattr(
            html,
            "png_of",
            lambda drawing, *dots: drawn_by(drawing, *dots) if drawing else text_png(""),
        )
        yield
