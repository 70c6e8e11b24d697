"""The table of runs as a widget, and as one page that needs no kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.extensions.many_runs.facts import (
    POLICIES,
    RunFacts,
    differing_settings,
    numbers_of,
    setting_words,
)
from workbench.look.cells.explore import script_data, style
from workbench.look.escape import visible
from workbench.look.live import page_text
from workbench.values.errors import WorkbenchError

HERE = Path(__file__).resolve().parent


def script() -> str:
    """One module: anywidget takes no other kind."""
    own = (HERE / "runs.js").read_text(encoding="utf-8")
    return page_text("drawing.js", "page_parts.js") + "\n" + own


def page_rows(listed: Sequence[RunFacts]) -> Mapping[str, Any]:
    """What the page's script draws: a row a run, and the settings in which they differ."""
    names = differing_settings(listed)
    rows = []
    for facts in listed:
        settings = {name: setting_words(value) for name, value in facts.settings.items()}
        curve = [None if value is None or value != value else float(value) for value in facts.curve]
        rows.append(
            numbers_of(facts)
            | {"rates": {policy: facts.reached(policy) for policy in POLICIES}}
            | {"trained": facts.rate("trained"), "curve": curve, "problem": facts.problem}
            | {"baselines": {policy: facts.rate(policy) for policy in POLICIES[1:]}}
            | {"settings": settings}
        )
    return {"rows": rows, "differing": names}


def visible_values(value: Any) -> Any:
    """The same JSON value, every text of it visible: names and settings are foreign."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(name)): visible_values(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible_values(inner) for inner in value]
    return value


def runs_widget(read: Callable[[], Sequence[RunFacts]]) -> Any:
    """The table of what `read` gives as a widget, which asks for it again when somebody presses its button. WorkbenchError where anywidget
    is not installed."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise WorkbenchError(
            "the table of runs needs anywidget: pip install 'agent-rl-workbench[lab]'; runs.view() does without"
        ) from error

    class RunsWidget(anywidget.AnyWidget):
        _esm = script()
        _css = style()
        table = traitlets.Dict().tag(sync=True)

    widget = RunsWidget(table=visible_values(page_rows(read())))

    def refresh(_widget: Any, _message: Any, _buffers: Any) -> None:
        widget.table = visible_values(page_rows(read()))

    widget.on_msg(refresh)
    return widget


def runs_page(listed: Sequence[RunFacts]) -> bytes:
    """One page with the table; it loads nothing."""
    data = script_data(visible_values(page_rows(listed)))
    code = script().replace("export default { render };", "").replace("export function", "function")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>runs</title><style>body{{margin:12px;color-scheme:light dark}}{style()}</style>"
        '<div id="runs"></div>'
        f'<script type="module">{code}\nrenderSaved(document.getElementById("runs"), {data});</script></html>\n'
    ).encode()
