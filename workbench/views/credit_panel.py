"""The widgets of the credit editor: a line per setting, a number per reward, and the picture beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.types import Group, Trajectory, trajectories_of
from workbench.views import words

if TYPE_CHECKING:
    from workbench.views.credit_editor import CreditEditor, Knob

HINT = "rewards of the chosen attempt, by turn:"
# Without a width of its own a widget grows with what it holds, and a long line would push the page out of the window.
WITHIN = '<div style="width:0;min-width:100%">{}</div>'
# Part of the widgets, and gone with them: while they are alive, the output after them would only say the same twice.
HIDE_THE_PICTURE = "<style>.jp-OutputArea-child:has(.wb-credit-editor) + .jp-OutputArea-child {display: none}</style>"


class CreditPanel:
    """The widgets. Each change makes a new `Edit` and draws once; what did not change is not sent again."""

    def __init__(self, editor: CreditEditor) -> None:
        import ipywidgets

        self.w, self.editor, self.quiet = ipywidgets, editor, False
        self.algorithm = ipywidgets.Dropdown(
            options=list(editor.knobs),
            value=editor.edit.algorithm,
            layout=self._wide(),
            tooltip="estimator",
        ).add_class("wb-algorithm")
        self.names = _names(editor.groups)
        self.attempt = ipywidgets.Dropdown(
            options=_numbered(self.names),
            value=editor.attempt,
            layout=ipywidgets.Layout(width="270px"),
        ).add_class("wb-attempt")
        self.reset = ipywidgets.Button(
            description="Undo all edits", icon="undo", layout=self._wide()
        ).add_class("wb-reset")
        self.knobs: dict[str, tuple[Any, Callable[[], Any]]] = {}  # widget, and what it says
        self.notes: dict[str, Any] = {}
        self.rewards: dict[int, Any] = {}
        self.settings = ipywidgets.VBox(layout=ipywidgets.Layout(width="272px", flex="0 0 auto"))
        self.paid = ipywidgets.HBox(
            layout=ipywidgets.Layout(flex_flow="row wrap", align_items="center")
        )
        self.picture = ipywidgets.HTML(
            layout=ipywidgets.Layout(width="100%", min_width="0")
        ).add_class("wb-credit")
        right = ipywidgets.VBox(
            [self.paid, self.picture],
            layout=ipywidgets.Layout(
                width="calc(100% - 290px)", flex="1 1 0", min_width="0", overflow="auto"
            ),
        )
        hidden = ipywidgets.HTML(HIDE_THE_PICTURE, layout=ipywidgets.Layout(display="none"))
        self.box = ipywidgets.HBox(
            [self.settings, right, hidden],
            layout=ipywidgets.Layout(align_items="flex-start", width="100%"),
        ).add_class("wb-credit-editor")
        self.algorithm.observe(self._other_algorithm, "value")
        self.attempt.observe(self._other_attempt, "value")
        self.reset.on_click(self._undo)
        self._lay_out_settings()
        self._lay_out_rewards()
        self._draw()

    def bundle(self) -> dict[str, Any]:
        data = self.box._repr_mimebundle_()
        data = data[0] if isinstance(data, tuple) else data
        found = {kind: value for kind, value in data.items() if "widget" in kind}
        return found | {
            "text/plain": "the credit editor lives as long as its kernel; its picture stands below"
        }

    def _wide(self) -> Any:
        return self.w.Layout(width="262px", margin="0 0 2px 0")

    # -------------------------------------------------------------------------------------------- layout

    def _lay_out_settings(self) -> None:
        """A line per setting of this algorithm, under the heading of its part."""
        self.knobs, self.notes = {}, {}
        rows, part = [self._heading("estimator"), self.algorithm], ""
        for knob in self.editor.knobs[self.editor.edit.algorithm]:
            if knob.part != part:
                part = knob.part
                rows.append(self._heading(part))
            rows.append(self._line(knob))
        self.settings.children = [*rows, self.reset]

    def _heading(self, text: str) -> Any:
        return self.w.HTML(
            f'<b style="font-size:12px">{text}</b>',
            layout=self.w.Layout(margin="6px 0 0 0", height="20px"),
        )

    def _line(self, knob: Knob) -> Any:
        label = self.w.Label(
            knob.name.rpartition(".")[2],
            layout=self.w.Layout(width="66px" if is_slider(knob) else "162px", height="26px"),
        )
        control, read = control_of(
            self.w, knob, self.editor.edit.settings.get(knob.name, knob.default)
        )
        control.add_class(f"wb-knob-{knob.name.replace('.', '-')}")
        control.observe(self._changed, "value")
        self.knobs[knob.name], self.notes[knob.name] = (control, read), label
        return self.w.HBox([label, control], layout=self.w.Layout(height="28px", overflow="hidden"))

    def _lay_out_rewards(self) -> None:
        """A number per turn of the chosen attempt, and one for its outcome where it has one."""
        self.rewards = {}
        children = [self.attempt, self.w.Label(HINT)]
        for turn, (name, reward) in enumerate(
            paid_by(trajectories_of(self.editor.groups)[self.editor.attempt])
        ):
            reward = self.editor.edit.rewards.get((self.editor.attempt, turn), reward)
            if reward is None:
                children.append(self.w.Label(f"{name} not scored"))
                continue
            box = self.w.FloatText(
                value=reward,
                step=0.1,
                description=name,
                layout=self.w.Layout(width="118px"),
                style={"description_width": "48px"},
            )
            box.add_class(f"wb-reward-{turn}")
            box.observe(self._changed, "value")
            self.rewards[turn] = box
            children.append(box)
        self.paid.children = children

    # -------------------------------------------------------------------------------------------- what the user does

    def _changed(self, _change: Any) -> None:
        if self.quiet:
            return
        knobs = {knob.name: knob for knob in self.editor.knobs[self.editor.edit.algorithm]}
        found = {name: read() for name, (_, read) in self.knobs.items()}
        settings = {name: value for name, value in found.items() if value != knobs[name].default}
        paid = paid_by(trajectories_of(self.editor.groups)[self.editor.attempt])
        rewards = {
            key: reward
            for key, reward in self.editor.edit.rewards.items()
            if key[0] != self.editor.attempt
        }
        rewards |= {
            (self.editor.attempt, turn): box.value
            for turn, box in self.rewards.items()
            if box.value != paid[turn][1]
        }
        self.editor.edit = replace(self.editor.edit, settings=settings, rewards=rewards)
        self._draw()

    def _other_algorithm(self, change: Any) -> None:
        if self.quiet:
            return
        known = {knob.name for knob in self.editor.knobs[change["new"]]}
        kept = {name: value for name, value in self.editor.edit.settings.items() if name in known}
        self.editor.edit = replace(self.editor.edit, algorithm=change["new"], settings=kept)
        self._lay_out_settings()
        self._draw()

    def _other_attempt(self, change: Any) -> None:
        if self.quiet:
            return
        self.editor.attempt = change["new"]
        self._lay_out_rewards()
        self._draw()

    def _undo(self, _button: Any) -> None:
        self.editor.edit, self.quiet = self.editor.start, True
        self.algorithm.value = self.editor.edit.algorithm
        self.quiet = False
        self._lay_out_settings()
        self._lay_out_rewards()
        self._draw()

    def _draw(self) -> None:
        html = WITHIN.format(self.editor.view().html)
        if self.picture.value != html:
            self.picture.value = html
        self._name_attempts()
        inert = self.editor.inert()
        for name, label in self.notes.items():
            label.style.text_color = "#808a94" if name in inert else None
            label.value = name.rpartition(".")[2] + (" (inert)" if name in inert else "")
            label.tooltip = self.knobs[name][0].tooltip = inert.get(name, "")

    def _name_attempts(self) -> None:
        """The list of attempts says what they earn now; after an edit that has no credit, what they earned before."""
        try:
            names = _names(self.editor.outcome().groups)
        except Exception:  # the picture says what is wrong
            return
        if names == self.names:
            return
        self.names, self.quiet = names, True
        self.attempt.options = _numbered(names)
        self.attempt.value = self.editor.attempt
        self.quiet = False


def is_slider(knob: Knob) -> bool:
    """A number between two bounds that stands under no part's heading."""
    return (
        not knob.part
        and not knob.choices
        and isinstance(knob.default, float)
        and knob.high is not None
    )


def control_of(widgets: Any, knob: Knob, value: Any) -> tuple[Any, Callable[[], Any]]:
    """The widget of a setting, and what reads its value."""
    layout = widgets.Layout(width="196px" if is_slider(knob) else "100px", height="26px")
    choices = knob.choices if not knob.choices or value in knob.choices else (*knob.choices, value)
    if choices:  # by number: to a widget None is no choice at all
        words = {True: "on", False: "off", None: "as group"}
        control = widgets.Dropdown(
            options=[(words.get(c, str(c)), i) for i, c in enumerate(choices)],
            value=choices.index(value),
            layout=layout,
        )
    elif is_slider(knob):
        control = widgets.FloatSlider(
            value=value, min=knob.low, max=knob.high, step=0.01, readout_format=".2f", layout=layout
        )
    elif isinstance(knob.default, int):
        control = widgets.BoundedIntText(
            value=value, min=int(knob.low), max=int(knob.high or 1_000_000), layout=layout
        )
    else:
        control = widgets.FloatText(value=value, step=0.05, layout=layout)
    return control, lambda: choices[control.value] if choices else control.value


def _names(groups: Sequence[Group]) -> list[str]:
    return [
        f"attempt {n}: {words.success_words(t)}, {words.reward_words(t)}"
        for n, t in enumerate(trajectories_of(groups))
    ]


def _numbered(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, n) for n, name in enumerate(names)]


def paid_by(trajectory: Trajectory) -> list[tuple[str, float | None]]:
    """(name, reward) of each turn, then of the outcome if there is one: what can be edited."""
    paid = [(f"turn {turn.index}", turn.reward) for turn in trajectory.turns]
    return paid if trajectory.outcome is None else [*paid, ("outcome", trajectory.outcome)]
