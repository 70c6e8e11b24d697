"""The credit editor: change a reward, an estimator or one of its settings, and see the credit of every token change.

It knows no tensor library and no algorithm. Whoever opens it (`notebook/credit.py`) hands over the settings there are and
a function `edit -> Outcome`, which calls what training calls. In JupyterLab it is made of widgets that live as long as
the kernel does, and in an output of its own stands the picture as it was when the cell was run: hidden while the
widgets are alive, there when the notebook is opened again without them. (In one output JupyterLab would prefer the
dead widget.) Without anybody looking (papermill) there is nothing but that picture.

An edit that cannot be computed is shown as such, with the reason, in the place of the picture: whatever is raised.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.types import Group, Trajectory, View, trajectories_of
from workbench.types.errors import ConfigError, DataError
from workbench.views import words
from workbench.views.credit import Credited, TokenTexts, failed_view, show_credit

HINT = "rewards of the chosen attempt, by turn:"
# Without a width of its own a widget grows with what it holds, and a long line would push the page out of the window.
WITHIN = '<div style="width:0;min-width:100%">{}</div>'
# Part of the widgets, and gone with them: while they are alive, the output after them would only say the same twice.
HIDE_THE_PICTURE = ("<style>.jp-OutputArea-child:has(.wb-credit-editor) + .jp-OutputArea-child {display: none}</style>")


@dataclass(frozen=True)
class Knob:
    """A setting that may decide credit: its dotted name, what it is where nobody sets it, what it may be. `choices`:
    one of these; else a number in `low..high` (`high` None: no bound), whole where `default` is."""

    name: str
    default: Any
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float | None = None

    @property
    def part(self) -> str:
        """The heading it stands under: "masks" of "masks.gae_over"."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Edit:
    """What differs from the batch as it was collected: the algorithm, its settings by dotted name, and what a turn of
    an attempt earned: (number of the attempt over all groups, turn) -> reward, None: not scored. The turn after the
    last one is the outcome."""

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[tuple[int, int], float | None] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.algorithm, *(f"{name} = {value}" for name, value in self.settings.items())]
        for (attempt, turn), reward in self.rewards.items():
            parts.append(f"attempt {attempt}, turn {turn} earns {words.signed(reward)}")
        return " · ".join(parts)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an edit came to: the groups with the edited rewards, and their credit."""

    groups: tuple[Group, ...]
    credited: Credited


class CreditEditor:
    """Shows itself as the last line of a cell. `edit` is what is set now; `outcome()` its arrays; `view()` its picture;
    `after(...)` the picture of another edit, without touching this one: for a notebook that is read, not played with.
    """

    def __init__(self, groups: Sequence[Group], token_texts: TokenTexts, knobs: Mapping[str, Sequence[Knob]],
                 credit: Callable[[Edit], Outcome], start: Edit, *, own: str = "", attempt: int = 0,
                 widgets: bool = False) -> None:
        """`knobs`: the settings of each algorithm there is. `own`: what the one that `start` names was set to already,
        in words. The rest as in `cells.credit.credit_editor`."""
        if start.algorithm not in knobs:
            raise ConfigError(f"no algorithm {start.algorithm!r}; there are {', '.join(knobs)}")
        self.groups, self.token_texts, self.knobs = tuple(groups), token_texts, knobs
        self.start, self.edit, self.own, self.attempt = start, start, own, self._attempt(attempt)
        self._credit, self._before = credit, None
        self._inert: dict[str, Mapping[str, str]] = {}  # by algorithm, as last known
        self._panel = _Panel(self) if widgets else None

    def _attempt(self, attempt: int) -> int:
        count = len(trajectories_of(self.groups))
        if not 0 <= attempt < count:
            raise DataError(f"no attempt {attempt}: they are counted over all groups, from 0 to {count - 1}")
        return attempt

    # -------------------------------------------------------------------------------------------- value to picture

    def outcome(self, edit: Edit | None = None) -> Outcome:
        """Arrays of an edit (default: the present one). Raises what the algorithm raises."""
        return self._credit(edit or self.edit)

    def view(self, edit: Edit | None = None, attempt: int | None = None) -> View:
        """The picture of an edit, compared with the one that the editor was opened with. Never raises for an edit that
        has no credit: the picture says why."""
        edit = edit or self.edit
        own = f" ({self.own})" if self.own and edit.algorithm == self.start.algorithm else ""
        title = f"credit: {edit.algorithm}{own}{str(edit).removeprefix(edit.algorithm)}"
        try:
            outcome = self.outcome(edit)
        except Exception as error:  # whatever it is: out of a widget's callback it would go to a log that nobody reads
            return failed_view(title, f"{type(error).__name__}: {error}")
        chosen = self.attempt if attempt is None else self._attempt(attempt)
        before = None if edit == self.start else self._unedited()
        return show_credit(outcome.groups, self.token_texts, outcome.credited, before, title=title, attempt=chosen,
                           edited=edit.rewards)

    def after(self, *, algorithm: str | None = None, settings: Mapping[str, Any] = {},
              rewards: Mapping[tuple[int, int], float | None] = {}, attempt: int | None = None) -> View:
        """The picture after a further edit of what is set now. Another algorithm begins with its own settings."""
        kept = self.edit.settings if algorithm in (None, self.edit.algorithm) else {}
        return self.view(Edit(algorithm or self.edit.algorithm, {**kept, **settings}, {**self.edit.rewards, **rewards}),
                         attempt)

    def inert(self) -> Mapping[str, str]:
        """Settings of the present edit that cannot change its credit, each with the reason. Of an edit that has no
        credit: those of the last one under the same algorithm that had."""
        try:
            self._inert[self.edit.algorithm] = self.outcome().credited.inert
        except Exception:  # the picture of this very edit says what is wrong with it
            pass
        return self._inert.get(self.edit.algorithm, {})

    def _unedited(self) -> Credited | None:
        """The credit that the editor was opened with; None where there is none to compare with."""
        if self._before is None:
            try:
                self._before = self.outcome(self.start).credited
            except Exception:  # then there is nothing to compare with, and the picture of that edit says why
                return None
        return self._before

    # -------------------------------------------------------------------------------------------- showing itself

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._panel is not None:
            display(self._panel.bundle(), raw=True)
        display(self._repr_mimebundle_(), raw=True)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return self.view()._repr_mimebundle_()

    def __str__(self) -> str:
        return self.view().text

    __repr__ = __str__


# ------------------------------------------------------------------------------------------------ widgets


class _Panel:
    """The widgets. Each change makes a new `Edit` and draws once; what did not change is not sent again."""

    def __init__(self, editor: CreditEditor) -> None:
        import ipywidgets

        self.w, self.editor, self.quiet = ipywidgets, editor, False
        self.algorithm = ipywidgets.Dropdown(options=list(editor.knobs), value=editor.edit.algorithm,
                                             layout=self._wide(), tooltip="estimator")
        self.algorithm.add_class("wb-algorithm")
        self.names = _names(editor.groups)
        self.attempt = ipywidgets.Dropdown(options=_numbered(self.names), value=editor.attempt,
                                           layout=ipywidgets.Layout(width="270px"))
        self.attempt.add_class("wb-attempt")
        self.reset = ipywidgets.Button(description="Undo all edits", icon="undo", layout=self._wide())
        self.reset.add_class("wb-reset")
        self.knobs: dict[str, tuple[Any, Callable[[], Any]]] = {}  # widget, and what it says
        self.notes: dict[str, Any] = {}
        self.rewards: dict[int, Any] = {}
        self.settings = ipywidgets.VBox(layout=ipywidgets.Layout(width="272px", flex="0 0 auto"))
        self.paid = ipywidgets.HBox(layout=ipywidgets.Layout(flex_flow="row wrap", align_items="center"))
        self.picture = ipywidgets.HTML(layout=ipywidgets.Layout(width="100%", min_width="0"))
        self.picture.add_class("wb-credit")
        right = ipywidgets.VBox([self.paid, self.picture], layout=ipywidgets.Layout(
            width="calc(100% - 290px)", flex="1 1 0", min_width="0", overflow="auto"))
        hidden = ipywidgets.HTML(HIDE_THE_PICTURE, layout=ipywidgets.Layout(display="none"))
        self.box = ipywidgets.HBox([self.settings, right, hidden], layout=ipywidgets.Layout(
            align_items="flex-start", width="100%"))
        self.box.add_class("wb-credit-editor")
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
        return found | {"text/plain": "the credit editor lives as long as its kernel; its picture stands below"}

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
        return self.w.HTML(f'<b style="font-size:12px">{text}</b>',
                           layout=self.w.Layout(margin="6px 0 0 0", height="20px"))

    def _line(self, knob: Knob) -> Any:
        is_slider = not knob.part and not knob.choices and isinstance(knob.default, float) and knob.high is not None
        label = self.w.Label(knob.name.rpartition(".")[2], layout=self.w.Layout(
            width="66px" if is_slider else "162px", height="26px"))
        layout = self.w.Layout(width="196px" if is_slider else "100px", height="26px")
        value = self.editor.edit.settings.get(knob.name, knob.default)
        choices = knob.choices if not knob.choices or value in knob.choices else (*knob.choices, value)
        if choices:  # by number: to a widget None is no choice at all
            control = self.w.Dropdown(options=[(_word(c), i) for i, c in enumerate(choices)],
                                      value=choices.index(value), layout=layout)
        elif is_slider:
            control = self.w.FloatSlider(value=value, min=knob.low, max=knob.high, step=0.01, readout_format=".2f",
                                         layout=layout)
        elif isinstance(knob.default, int):
            control = self.w.BoundedIntText(value=value, min=int(knob.low), max=int(knob.high or 1_000_000),
                                            layout=layout)
        else:
            control = self.w.FloatText(value=value, step=0.05, layout=layout)
        control.add_class(f"wb-knob-{knob.name.replace('.', '-')}")
        control.observe(self._changed, "value")
        self.knobs[knob.name] = (control, lambda: choices[control.value] if choices else control.value)
        self.notes[knob.name] = label
        return self.w.HBox([label, control], layout=self.w.Layout(height="28px", overflow="hidden"))

    def _lay_out_rewards(self) -> None:
        """A number per turn of the chosen attempt, and one for its outcome where it has one."""
        self.rewards = {}
        children = [self.attempt, self.w.Label(HINT)]
        for turn, (name, reward) in enumerate(paid_by(trajectories_of(self.editor.groups)[self.editor.attempt])):
            reward = self.editor.edit.rewards.get((self.editor.attempt, turn), reward)
            if reward is None:
                children.append(self.w.Label(f"{name} not scored"))
                continue
            box = self.w.FloatText(value=reward, step=0.1, description=name, layout=self.w.Layout(width="118px"),
                                   style={"description_width": "48px"})
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
        rewards = {key: reward for key, reward in self.editor.edit.rewards.items() if key[0] != self.editor.attempt}
        rewards |= {(self.editor.attempt, turn): box.value for turn, box in self.rewards.items()
                    if box.value != paid[turn][1]}
        self.editor.edit = Edit(self.editor.edit.algorithm, settings, rewards)
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


def _names(groups: Sequence[Group]) -> list[str]:
    return [f"attempt {n}: {words.success_words(t)}, {words.reward_words(t)}"
            for n, t in enumerate(trajectories_of(groups))]


def _numbered(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, n) for n, name in enumerate(names)]


def _word(choice: Any) -> str:
    return {True: "on", False: "off", None: "as group"}.get(choice, str(choice))


def paid_by(trajectory: Trajectory) -> list[tuple[str, float | None]]:
    """(name, reward) of each turn, then of the outcome if there is one: what can be edited."""
    paid = [(f"turn {turn.index}", turn.reward) for turn in trajectory.turns]
    return paid if trajectory.outcome is None else [*paid, ("outcome", trajectory.outcome)]
