"""What a committed notebook says in words is what its own outputs say.

Three checks of every notebook, with negative controls at the end:

- a name in backticks is in a cell, in an output, or is one of the package, the settings, the commands and the files;
- a number in a sentence is in a cell or in an output;
- a sentence of `CLAIMS` holds in the output that it is about. A sentence that is changed or gone fails, so that nobody
  changes it without looking at its check.

None of them runs a notebook: `python -m tests.notebook_kit` does, and writes the outputs that are read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import nbformat
import pytest

import workbench as wb
from tests.notebook_kit import NOTEBOOKS, ROOT, code_cells
from workbench.cli import main as workbench_command
from workbench.training.listing import settings_text

NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w])")
NAME = re.compile(r"`([^`]+)`")


class Page:
    """A notebook as text: its prose by cell, its code, and what its cells printed."""

    def __init__(self, notebook: Any) -> None:
        self.prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
        cells = code_cells(notebook)
        self.printed = [(cell.source, "\n".join(map(_text, cell.outputs))) for cell in cells]
        self.code = "\n".join(source for source, _ in self.printed)
        self.outputs = "\n".join(printed for _, printed in self.printed)

    def output(self, containing: str) -> str:
        """What the first code cell with this in its source printed."""
        for source, printed in self.printed:
            if containing in source:
                return printed
        raise AssertionError(f"no cell has {containing!r}")


def _text(output: Any) -> str:
    data = output.get("data", {})
    return data.get("text/markdown") or data.get("text/plain") or output.get("text", "")


def page(name: str) -> Page:
    return Page(nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4))


def number(pattern: str, text: str) -> float:
    """The first group of a pattern, as a number."""
    match = re.search(pattern, text)
    assert match, f"{pattern!r} is not in {text[:300]!r}"
    return float(match[1].replace(",", "").replace("−", "-"))


# ------------------------------------------------------------------------------------------------ names


def unknown_names(read: Page) -> list[str]:
    """Names in backticks that nothing here has."""
    return [name for text in read.prose for name in NAME.findall(text) if not _is_known(name, read)]


def _is_known(name: str, read: Page) -> bool:
    if name in read.code or name in read.outputs:
        return True
    first = name.split()[0]
    if first.startswith("wb."):
        return hasattr(wb, re.match(r"wb\.(\w+)", first)[1])
    if first == "make":
        target = name.split()[1]
        return f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    if first == "workbench":
        return _is_command(name.split()[1])
    if first == "papermill":
        return all(
            (ROOT / "notebooks" / word).exists()
            for word in name.split()
            if word.endswith(".ipynb") and word != "out.ipynb"
        )
    if (ROOT / first).exists() or (ROOT / "notebooks" / f"{first}.ipynb").exists():
        return True
    if (match := re.match(r"finding = \"(.+)\"", name)) is not None:
        return (ROOT / "experiments" / f"{match[1]}.toml").exists()
    return name in ELSEWHERE or hasattr(wb, first) or _is_setting(name.partition("=")[0])


def _is_setting(key: str) -> bool:
    try:
        return bool(settings_text(key))
    except wb.errors.ConfigError:
        return False


# Names of a form, or of something that a cell makes.
ELSEWHERE = {"module:Name", "--set", "runs/steps", "planted = 10", "grid.table().heat()"}


def _is_command(name: str) -> bool:
    with pytest.raises(SystemExit) as ended:
        workbench_command([name, "--help"])
    return ended.value.code == 0


# ------------------------------------------------------------------------------------------------ numbers


def unknown_numbers(read: Page) -> list[str]:
    """Numbers of the prose that neither a cell nor an output has, nor one of `OUTSIDE`."""
    known = set(NUMBER.findall(read.code)) | set(NUMBER.findall(read.outputs))
    missing = []
    for text in read.prose:
        for sentence in sentences(NAME.sub("", text)):
            found = NUMBER.findall(sentence)
            missing += [
                f"{value} in {sentence!r}"
                for value in found
                if value not in known
                and not any(known_words in sentence for known_words in OUTSIDE)
            ]
    return missing


# Sentences whose number is of something outside the notebook, and where that is held to what is there.
OUTSIDE = {
    "A policy of 0.7 M parameters": "data/README.md",
    "whatever can be asked of 0.6 million": "data/README.md",
    "under 12,000 tokens": "tests/plain/test_plain_size.py",
    "Agent-R1 and RAGEN trained models of 0.5 to 3 billion": "docs/evidence/papers.md",
    "0.8 or 1 in the discovery": "a value to try",
}


def sentences(text: str) -> list[str]:
    """Prose cut at the ends of sentences, items and headings; line breaks within one are spaces."""
    blocks = re.split(r"\n\s*\n|\n(?=- )|\n(?=#)", text)
    flat = (" ".join(block.split()) for block in blocks)
    return [part for block in flat for part in re.split(r"(?<=[.?!:;])\s+", block) if part]


# ------------------------------------------------------------------------------------------------ claims


@dataclass(frozen=True)
class Claim:
    """A sentence of a notebook, and whether its outputs bear it out."""

    notebook: str
    sentence: str
    holds: Callable[[Page], bool]


SAMPLED_BEFORE = r"(?m)^untrained +sampled +([\d.]+) %"


def _share_trained(table: str) -> float:
    return number(r"\(([\d.]+) %\)", table)


def _credit(table: str) -> list[tuple[int, int, float]]:
    """Per trajectory of an edited step: tokens trained, tokens changed, largest change."""
    rows = re.findall(r"(?m)^(?:→| ) +\d+ \(group \d+\).*$", table)
    cells = [re.split(r" {2,}", row.removeprefix("→").strip()) for row in rows]
    named = next(line for line in table.splitlines() if line.strip().startswith("attempt "))
    head = re.split(r" {2,}", named.strip())
    at = head.index("trained")
    found = []
    for row in cells:
        trained = int(row[at + 1])
        rest = [cell for cell in row[at + 2 :] if re.fullmatch(r"[\d.]+", cell)]
        found.append((trained, int(rest[0]) if rest else 0, float(rest[1]) if rest else 0.0))
    return found


def _tour_counts_settings(page: Page) -> bool:
    table = page.output("load_config(preset")
    said = re.match(r"configuration: (\d+) settings, (\d+) changed", table)
    rows = [line for line in table.splitlines()[1:] if re.match(r"[ *] +[\w.]+(?: {2,}|$)", line)]
    return int(said[1]) == len(rows) and int(said[2]) == sum(line.startswith("*") for line in rows)


def _rises_alike(page: Page) -> bool:
    table = page.output("mean of the first third")
    right, wrong = (
        [float(value) for value in re.findall(r"-?\d+\.\d+", line)]
        for line in re.findall(r"(?m)^(?:right|wrong) .*$", table)
    )
    rises = [row[2] - row[1] for row in (right, wrong)]
    return right[0] == wrong[0] and min(rises) > 0.1 and abs(rises[0] - rises[1]) < 0.05


def _explore_names_both(page: Page) -> bool:
    text = page.output("wb.explore([right, wrong])")
    return "silent-right" in text and "silent-wrong" in text


def _whitened(page: Page) -> bool:
    rows = _credit(page.output("edited.after(rewards=more)"))
    return all(trained == changed for trained, changed, _ in rows) and rows[0][2] == max(
        change for _, _, change in rows
    )


def _grouped(page: Page) -> bool:
    rows = _credit(page.output("grpo.after(rewards=more)"))
    group, others = rows[:6], rows[6:]
    return all(changed == trained for trained, changed, _ in group) and not any(
        changed for _, changed, _ in others
    )


def _numbers_of_estimators(page: Page) -> bool:
    table = page.output("wb.show_estimators").splitlines()
    head = re.split(r" {2,}", table[1].strip())
    rows = [
        re.split(r" {2,}", line.strip()) for line in table[2:] if re.match(r" *\d+ +\d+ ", line)
    ]
    column = {name: [row[head.index(name)] for row in rows] for name in head}
    attempts = column["attempt"]

    def one_each(name: str) -> bool:
        values = [set() for _ in range(max(map(int, attempts)) + 1)]
        for attempt, value in zip(attempts, column[name]):
            values[int(attempt)].add(value)
        return all(len(value) == 1 for value in values)

    return (
        all(one_each(name) for name in ("grpo", "dr_grpo", "rloo"))
        and not any(".." in cell for name in ("reinforce", "turn_ppo") for cell in column[name])
        and any(".." in cell for cell in column["ppo"])
    )


def _intervals_overlap(page: Page) -> bool:
    table = page.output('evaluation="last"')
    before, after = (
        [
            float(value)
            for value in re.search(
                rf"(?m)^{name} +sampled +[\d.]+ % +([\d.]+) to ([\d.]+) %", table
            ).groups()
        ]
        for name in ("untrained", "trained")
    )
    return before[1] > after[0]


def _first_difference(page: Page) -> bool:
    table = page.outputs[page.outputs.index("different: config.json: learner.lr") :]
    rows = {
        line.split()[0]: line.split()[1]
        for line in table.splitlines()
        if re.match(r"(trajectories|credit|metrics) +[·=≠]+$", line)
    }
    return rows["trajectories"][1] == rows["credit"][1] == "=" and rows["metrics"][1] == "≠"


def _curve(page: Page, cell: str, column: str) -> list[float]:
    """A column of the table of signals."""
    lines = page.output(cell).splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("step  ")]
    assert starts, f"no table of signals in the output of {cell!r}"
    start = starts[0]
    head = re.split(r" {2,}", lines[start].strip())
    rows = []
    for line in lines[start + 1 :]:
        cells = re.split(r" {2,}", line.strip())
        if len(cells) != len(head) or not cells[0].isdigit():
            break
        rows.append(float(cells[head.index(column)]))
    return rows


def _echo(page: Page) -> bool:
    success, valid, repeated, tokens = (
        _curve(page, '"runs/echo"', name) for name in ("success", "valid", "repetition", "tokens")
    )
    best = success.index(max(success))
    return (
        0 < best < len(success) - 1
        and success[0] < success[best]
        and min(valid[best:]) < valid[best] / 1.5
        and tokens[-1] > 1.5 * tokens[best]
        and repeated[-1] > 10 * repeated[0]
    )


def _retreat(page: Page) -> bool:
    rewards, success = (_curve(page, '"runs/retreat"', name) for name in ("reward", "success"))
    return rewards[-1] > rewards[0] and abs(rewards[-1]) < 0.1 and success[-1] < 0.1


def _false_alarm(page: Page) -> bool:
    success, spread, commonest = (
        _curve(page, '"runs/healthy"', name) for name in ("success", "success spread", "commonest")
    )
    won = max(_curve(page, '"runs/healthy"', "flat won"))
    return (
        success[-1] > success[0] + 0.3
        and spread[-1] < spread[0] / 2
        and won > 0
        and commonest[-1] > commonest[0]
    )


def _every_seed_loses(page: Page) -> bool:
    text = page.output("recorded.checks()")
    points = [float(value) for value in re.findall(r"seed \d+: (-?[\d.]+) points", text)]
    return len(points) >= 5 and max(points) < -50


def _bitwise(page: Page) -> bool:
    values = page.output('wb.show_metrics({"advantages"')
    return re.findall(r"(?m)^(\w+) +(\w+)$", values) == [("advantages", "yes"), ("weights", "yes")]


def _segments(page: Page) -> bool:
    rows = {
        line.split()[0]: [int(value.replace(",", "")) for value in line.split()[1:]]
        for line in page.output("history").splitlines()
        if re.match(r"(append|template|window|fresh) +\d", line)
    }
    attempts, turns, segments = 0, 1, 2
    return (
        rows["append"][segments] == rows["append"][attempts]
        and all(rows[name][segments] > rows[name][attempts] for name in ("window", "fresh"))
        and rows["fresh"][segments] == rows["fresh"][turns]
    )


def _players(page: Page) -> dict[str, list[float]]:
    """Policy -> the numbers of its row where skill is told apart: greedy and sampled success with their intervals, then valid
    turns, tokens a turn, guesses among those left, waste."""
    table = page.output("demo.rows_view")
    names = ("untrained", "warm start", "more fine-tuning", "trained")
    rows = {}
    for name in names:
        [line] = re.findall(rf"(?m)^{name}  .*$", table)
        rows[name] = [float(value) for value in re.findall(r"\d+\.\d+", line)]
    return rows


def _form_came_with_the_warm_start(page: Page) -> bool:
    rows = _players(page)
    valid, tokens, among_left = 6, 7, 8
    before = rows["untrained"]
    after = rows["warm start"]
    return (
        before[valid] == 0.0
        and after[valid] > 0.95
        and after[among_left] > 0.9
        and after[tokens] < before[tokens]
        and abs(rows["trained"][valid] - after[valid]) < 0.05
    )


def _not_told_from_more_of_the_same(page: Page) -> bool:
    table = page.output("demo.rows_view")
    over = r"trained greedy over more fine-tuning greedy: [+-][\d.]+ \[([+-][\d.]+), ([+-][\d.]+)\]"
    low, high = map(float, re.search(over, table).groups())
    return low <= 0.0 <= high


def _warm_start_is_called_untrained(page: Page) -> bool:
    in_run = number(r"(?m)^ +untrained: ([\d.]+)", page.output("wb.show(run)"))
    greedy, sampled = 0, 3
    row = _players(page)["warm start"]
    return any(abs(100 * in_run - row[column]) < 0.1 for column in (greedy, sampled))


def _seldom_valid(page: Page) -> bool:
    rows = re.findall(r"(\d+) of (\d+) +\[", page.output("wb.tune_in"))
    shares = [int(valid) / int(turns) for valid, turns in rows]
    return len(shares) == 2 and shares[0] < shares[1] < 0.5


CLAIMS = [
    Claim("00_tour", "One frozen tree of settings.", _tour_counts_settings),
    Claim(
        "00_tour",
        "The rewards differ because actions are sampled",
        lambda page: number(r"std \(n - 1\) ([\d.]+)", page.output("group = wb.rollout")) > 0,
    ),
    Claim(
        "00_tour",
        "Trained tokens have a bar on top and `TRAIN` in the margin",
        lambda page: "[TRAIN turn 0" in page.output("wb.show_tokens(worst"),
    ),
    Claim(
        "00_tour",
        "Random play, the untrained policy and the solver are beside the curve",
        lambda page: all(
            f"{name}: " in page.output(".wait()") for name in ("random", "untrained", "solver")
        ),
    ),
    Claim(
        "00_tour",
        "Credit is computed anew from the stored ids and rewards",
        lambda page: "bit for bit" in page.output("wb.show_replay"),
    ),
    Claim(
        "01_rollout",
        "only the policy's answers are trained, a small part of all tokens",
        lambda page: 0 < _share_trained(page.output("show_masks(groups")) < 30,
    ),
    Claim(
        "01_rollout",
        "rows differ in length because trajectories do",
        lambda page: (
            len({len(row) for row in re.findall(r"\|(.*)", page.output("show_masks(groups"))}) > 3
        ),
    ),
    Claim(
        "01_rollout",
        "So the comparison is bit for bit.",
        lambda page: ["yes", "no"] == re.findall(r"(?m)(yes|no)$", page.output("the same address")),
    ),
    Claim("02_masks", "then a new segment begins", _segments),
    Claim(
        "02_masks",
        "an earlier answer, ids and all, shown once more",
        lambda page: len(re.findall(r"\d repeated", page.outputs)) > 0,
    ),
    Claim(
        "02_masks",
        "At temperature 1 the bug stays invisible.",
        lambda page: "0 of " in page.outputs and "the recorded mask still fits" in page.outputs,
    ),
    Claim(
        "02_masks",
        "A byte that is no character comes back as three",
        lambda page: "\\xef▏\\xbf▏\\xbd" in page.outputs,
    ),
    Claim(
        "02_masks",
        "unwhitened: not one action token has another advantage",
        lambda page: "the largest change is 0\n" in page.output("show_mask_switches"),
    ),
    Claim("03_advantages", "This page shows what a stored step really used", _bitwise),
    Claim("03_advantages", "under PPO the tokens of that answer gain most", _whitened),
    Claim("03_advantages", "under GRPO all tokens of the trajectory gain alike", _grouped),
    Claim("03_advantages", "`grpo`, `dr_grpo` and `rloo` give one number", _numbers_of_estimators),
    Claim(
        "03_advantages",
        "A combination that makes no sense is refused",
        lambda page: "ConfigError" in page.output('"reference.kl_in": "reward"'),
    ),
    Claim("04_train", "After so few steps the intervals overlap", _intervals_overlap),
    Claim(
        "04_train", "*Equal to the last bit*", lambda page: "equal: to the last bit" in page.outputs
    ),
    Claim("04_train", "step 1 has the same trajectories and credit", _first_difference),
    Claim("05_silent_bugs", "Both rise from the same place by about as much", _rises_alike),
    Claim("05_silent_bugs", "nobody could tell them apart by these curves", _explore_names_both),
    Claim(
        "05_silent_bugs",
        "the finding has an address",
        lambda page: (
            re.search(r"R6 +FOUND", page.output("found = wb.lint(wrong)"))
            and re.search(r"turn \d+ / token \d+", page.output("found = wb.lint(wrong)"))
        ),
    ),
    Claim(
        "05_silent_bugs",
        "a rule that lacks evidence says",
        lambda page: (
            not re.search(r"passed .*\(missing", page.outputs)
            and re.search(r"(?m)^R\d+ +(partly|not) checked", page.outputs)
        ),
    ),
    Claim(
        "05_silent_bugs",
        "the second names its cause: the engine answers with old weights",
        lambda page: "stale weights" in page.output('wb.planted("weights-stay-behind")'),
    ),
    Claim(
        "07_echo_trap",
        "Success climbs first; then calls break, replies grow long, and some begin to repeat",
        _echo,
    ),
    Claim(
        "07_echo_trap",
        "The reward *rises*, to 0",
        _retreat,
    ),
    Claim("07_echo_trap", "The std of its rewards falls", _false_alarm),
    Claim(
        "08_ablation",
        "One control below **fails on purpose**",
        lambda page: page.outputs.count("FAIL: control") == 1,
    ),
    Claim(
        "08_ablation",
        "Whatever is *undecided* above may be as large.",
        lambda page: "undecided (WRONG)" in page.output("grid.table().forest()"),
    ),
    Claim(
        "09_your_own_env",
        "There is no solver, and every table will say so.",
        lambda page: page.outputs.count("none known") >= 3,
    ),
    Claim(
        "09_your_own_env",
        "The policy knows a search of another schema, so it begins near zero.",
        lambda page: number(SAMPLED_BEFORE, page.output("wb.show(searched, evaluation")) < 10,
    ),
    Claim("10_two_papers", "it ends below its start in every seed", _every_seed_loses),
    Claim("11_real_model", "Seldom: it writes sentences.", _seldom_valid),
    Claim(
        "11_real_model",
        "What the run calls untrained is its warm start.",
        _warm_start_is_called_untrained,
    ),
    Claim(
        "11_real_model",
        "brevity, form and reading came with the warm start, not with rewards",
        _form_came_with_the_warm_start,
    ),
    Claim(
        "11_real_model",
        "it is not told from more fine-tuning: the interval includes zero",
        _not_told_from_more_of_the_same,
    ),
    Claim(
        "12_your_agent",
        "The ids there are the ids that were trained.",
        lambda page: (
            "True" in page.output("sampled = [") and "False" not in page.output("sampled = [")
        ),
    ),
    Claim(
        "12_your_agent",
        "each call begins a segment of its own",
        lambda page: (
            page.output("wb.conversations(forked)").count("fork from turn") >= 1
            and "extends" not in page.output("wb.conversations(forked)")
        ),
    ),
    Claim(
        "plain",
        "Before the first update the ratio is exactly 1",
        lambda page: (
            set(
                re.findall(
                    r"(?m)^\d+ .*? (\d\.\d+) +-?\d\.\d{4} +-?\d\.\d{4} +\d\.\d{4}$", page.outputs
                )
            )
            == {"1.0"}
        ),
    ),
    Claim(
        "plain",
        "In the first update every weight moves by about the learning rate.",
        lambda page: (
            abs(
                abs(number(r"moved by (-?[\d.]+)", page.outputs))
                / number(r"the learning rate is ([\d.]+)", page.outputs)
                - 1
            )
            < 0.05
        ),
    ),
]


# ------------------------------------------------------------------------------------------------ tests

by_notebook = pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
by_claim = pytest.mark.parametrize(
    "claim",
    [pytest.param(claim, id=f"{claim.notebook}: {claim.sentence[:40]}") for claim in CLAIMS],
)


@by_notebook
def test_names_in_the_text_exist(name):
    assert not (unknown := unknown_names(page(name))), unknown


@by_notebook
def test_numbers_in_the_text_are_in_a_cell_or_an_output(name):
    assert not (unknown := unknown_numbers(page(name))), unknown


@by_claim
def test_the_claim_holds_in_the_output(claim):
    read = page(claim.notebook)
    prose = " ".join(" ".join(read.prose).split()).lower()
    assert claim.sentence.lower() in prose, "the sentence is not in the notebook any more"
    assert claim.holds(read)


@by_claim
def test_no_claim_holds_without_its_output(claim):
    read = nbformat.read(ROOT / "notebooks" / f"{claim.notebook}.ipynb", as_version=4)
    for cell in code_cells(read):
        cell.outputs = []
    try:
        holds = bool(claim.holds(Page(read)))
    except (
        AssertionError,
        AttributeError,
        IndexError,
        KeyError,
        StopIteration,
        TypeError,
        ValueError,
    ):
        holds = False
    assert not holds


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("`wb.bias` says so", ["wb.bias"]),
        ("`wb.bias_bench` says so", []),
        ("set `learner.speed`", ["learner.speed"]),
        ("set `learner.lr=1`", []),
        ("`make everything`", ["make everything"]),
        ("see `99_nothing`", ["99_nothing"]),
        ("see `00_tour`", []),
    ],
)
def test_negative_controls_of_names(text, unknown):
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    assert unknown_names(Page(made)) == unknown


def test_negative_control_of_numbers():
    printed = nbformat.v4.new_output("stream", text="106 settings")
    cells = [
        nbformat.v4.new_markdown_cell("There are 103 settings. There are 106 settings."),
        nbformat.v4.new_code_cell("config", outputs=[printed]),
    ]
    assert unknown_numbers(Page(nbformat.v4.new_notebook(cells=cells))) == [
        "103 in 'There are 103 settings.'"
    ]
