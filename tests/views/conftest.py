"""Drawing with matplotlib takes most of a view's time: only `test_views_pictures.py` does it, elsewhere PNGs are empty."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def pictures(request):
    if request.module.__name__ == "test_views_pictures":
        yield
        return
    import workbench.views.evaluation as evaluation
    import workbench.views.png as png

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(png, "plots_png", lambda *args, **more: b"\x89PNG")
        patch.setattr(evaluation, "_png", lambda *args: b"\x89PNG")
        yield
