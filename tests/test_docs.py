"""The documentation: tables are what their data gives, links lead somewhere, the README is short, the site builds.

Its commands are run by tests/test_readme.py, its examples by tests/test_readme_examples.py.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.make.__main__ import DATA, PAGES, compact, record, write_pages
from docs.make.docstrings import as_markdown, first_sentence
from docs.make.evidence import Table, filled, read, shown, tables_of
from docs.make.reference import entry, public_page, room_page
from docs.make.source import modules, resolve, room_of

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    *(
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if not {"made", "notebooks"} & set(path.parts)
    ),
]
MOST_README_LINES, MOST_PICTURE_BYTES = 250, 150_000


# ------------------------------------------------------------------------------------------------ the README


def test_the_readme_is_short():
    lines = len((ROOT / "README.md").read_text().splitlines())
    assert lines <= MOST_README_LINES, (
        f"README.md has {lines} lines, at most {MOST_README_LINES}: move text to docs/"
    )


def test_the_readme_shows_two_small_pictures():
    named = re.findall(
        r"!\[[^\]]{20,}\]\((docs/pictures/[^)]+)\)", (ROOT / "README.md").read_text()
    )
    assert sorted(named) == ["docs/pictures/run.png", "docs/pictures/tokens.png"]
    for name in named:
        png = (ROOT / name).read_bytes()
        assert png.startswith(b"\x89PNG") and 10_000 < len(png) <= MOST_PICTURE_BYTES, (
            f"{name}: {len(png)} bytes"
        )


def test_the_readme_finds_files_that_are_there():
    section = (ROOT / "README.md").read_text().split("## Find it in a minute")[1].split("\n## ")[0]
    named = re.findall(r"`(workbench/[^`]+)`", section)
    assert len(named) >= 6
    assert not [name for name in named if not (ROOT / name).exists()]


# ------------------------------------------------------------------------------------------------ evidence


def test_every_page_of_evidence_is_what_its_data_gives():
    assert not (changed := write_pages(check=True)), (
        f"{', '.join(changed)}: run `python -m docs.make`"
    )


def test_every_table_of_the_data_is_shown():
    on_pages = set().union(*(shown(path.read_text()) for path in PAGES.glob("*.md")))
    for path in sorted(DATA.glob("*.json")):
        tables = {None} if (path.stem, None) in on_pages else set(tables_of(read(path)))
        missing = [table for table in tables if (path.stem, table) not in on_pages]
        hidden = missing if "tables" in read(path) else missing * (len(missing) == len(tables))
        assert not hidden, f"{path.name}: no page shows {', '.join(map(str, hidden))}"


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_a_data_file_says_where_it_comes_from(path):
    data = read(path)
    assert data["source"] == "measured" or data["source"].startswith(
        "transcribed from the README of "
    )
    assert (data["source"] == "measured") == ("kind" in data), (
        "what a command wrote has a kind, a copy has tables"
    )
    assert (
        data["command"]
        and data["machine"]
        and data["title"]
        and re.search(r"\d{4}-\d\d-\d\d$", data["date"])
    )
    assert path.stat().st_size < 400_000
    assert not re.search(r"(?<![\w.~])/(tmp|home|root|work|var)/", path.read_text()), (
        "a path of one machine"
    )


def test_negative_controls_of_evidence(tmp_path):
    page = "<!-- evidence: one main -->\nold\n<!-- end of evidence -->\n"
    data = {
        "version": 1,
        "title": "One",
        "command": "make one",
        "date": "2026-01-01",
        "machine": "2 cores",
        "seeds": [0],
        "commit": "abc",
        "source": "measured",
        "tables": {"main": {"head": ["a", "b"], "rows": [["1", "x|y"]]}},
    }
    (tmp_path / "one.json").write_text(json.dumps(data))
    made = filled(page, tmp_path)
    assert "| 1 | x\\|y |" in made and "`make one`, 2026-01-01" in made and "old" not in made
    assert filled(made, tmp_path) == made and shown(made) == {("one", "main")}
    with pytest.raises(ValueError, match="no table 'other'"):
        filled(page.replace("main", "other"), tmp_path)
    (tmp_path / "one.json").write_text(
        json.dumps({key: value for key, value in data.items() if key != "machine"})
    )
    with pytest.raises(ValueError, match="missing machine"):
        filled(page, tmp_path)
    with pytest.raises(ValueError, match="expected 2 cells"):
        Table(["a", "b"], [["1"]]).markdown()


def test_compact_json_is_the_same_json():
    value = {"a": [1.0, 2.5, None], "b": {"c": [{"d": "ü"}], "e": []}, "f": {}, "g": True}
    assert json.loads(compact(value)) == value and '"a": [1, 2.5, null]' in compact(value)


def test_a_result_that_makes_no_table_is_not_kept(tmp_path, monkeypatch):
    import argparse

    (tmp_path / "bad.json").write_text('{"rows": "none"}')
    monkeypatch.setattr("docs.make.__main__.DATA", tmp_path)
    with pytest.raises((KeyError, TypeError)):
        record(
            argparse.Namespace(
                name="new",
                result=tmp_path / "bad.json",
                kind="bias",
                title="t",
                command="c",
                seeds=[],
                commit="abc",
                note="",
            )
        )
    assert not (tmp_path / "new.json").exists()


def test_a_demo_becomes_a_table_with_its_baselines_and_rivals():
    from docs.make.results import demo_tables

    def row(policy, mode, success):
        return {
            "policy": policy,
            "mode": mode,
            "success": success,
            "success_low": success - 0.1,
            "success_high": success + 0.1,
        }

    rise = {"difference": 0.5, "low": 0.4, "high": 0.6}
    result = {
        "seeds": [
            {
                "seed": 3,
                "rows": [row("random", "sampled", 0.2), row("trained", "sampled", 0.7)],
                "rise": rise,
                "rivals": [{"name": "no tool", "rows": [row("trained", "greedy", 0.1)]}],
                "training_cpu_seconds": 12.4,
                "wall_seconds": 20.0,
            }
        ]
    }
    tables = demo_tables(result)
    assert tables["main"].head == ["success %", "seed 3"]
    assert tables["main"].rows == [
        ["random, sampled", "20.0 [10.0, 30.0]"],
        ["trained, sampled", "70.0 [60.0, 80.0]"],
        ["no tool: trained, greedy", "10.0 [0.0, 20.0]"],
        ["rise over untrained, sampled, points", "+50.0 [40.0, 60.0]"],
    ]
    assert tables["cost"].rows == [["3", "12", "20"]]


def test_measured_baselines_become_a_table_by_preset(tmp_path, capsys):
    from docs.make.results import baseline_tables
    from experiments.baselines import main

    main(
        [
            "frozenlake-4x4",
            "sokoban-6x6",
            "--json",
            str(tmp_path / "b.json"),
            "--tasks",
            "8",
            "--attempts",
            "1",
            "2",
        ]
    )
    result = json.loads((tmp_path / "b.json").read_text())
    lake, sokoban = result["presets"]
    assert [(row["policy"], row["attempts"]) for row in lake["rows"]] == [
        ("random", 1),
        ("random", 2),
        ("solver", 1),
    ]
    table = baseline_tables(result)["main"]
    assert table.head[1:3] == ["random play, 8 tasks x 1", "random play, 8 tasks x 2"]
    assert [row[0] for row in table.rows] == ["`frozenlake-4x4`", "`sokoban-6x6`"]
    assert table.rows[0][4:] == ["100.0 [67.6, 100.0]", "100.0", "optimal"] and table.rows[0][3]
    assert table.rows[1][3] == table.rows[1][5] == ""  # no exact value is known
    assert capsys.readouterr().out.count("\n") == 6


# ------------------------------------------------------------------------------------------------ links


def slugs(markdown: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", markdown, flags=re.DOTALL), flags=re.MULTILINE
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-")
        for heading in headings
    }


def link_faults(page: Path, text: str) -> list[str]:
    """One sentence for each link of a page that leads nowhere. Links with a scheme are not followed."""
    faults = []
    for target in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    ):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            faults.append(f"{page.relative_to(ROOT)}: {target} is not there")
        elif anchor and path.suffix == ".md" and anchor not in slugs(path.read_text()):
            faults.append(f"{page.relative_to(ROOT)}: {name} has no heading #{anchor}")
    return faults


def test_every_link_leads_somewhere():
    faults = [fault for page in WRITTEN for fault in link_faults(page, page.read_text())]
    assert not faults, "\n".join(faults)


def test_negative_controls_of_links():
    page = ROOT / "docs/start/install.md"
    assert (
        link_faults(page, "[a](../guides/vllm.md) [b](../guides/vllm.md#set-up) [c](https://x.y/z)")
        == []
    )
    assert "is not there" in link_faults(page, "[a](nowhere.md)")[0]
    assert "no heading #nothing" in link_faults(page, "[a](../guides/vllm.md#nothing)")[0]


def test_every_page_is_in_a_table_of_contents():
    listed = {ROOT / "docs/index.md"}
    for page in WRITTEN:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            names = [line.strip() for line in tree.splitlines() if line and line[0] != ":"]
            listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    missing = [
        str(page.relative_to(ROOT))
        for page in WRITTEN
        if page not in listed and page.parts[-2] != ROOT.name
    ]
    assert not [name for name in missing if name.startswith("docs/")], missing


def test_llms_txt_names_pages_that_are_there():
    named = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert len(named) >= 8 and not [name for name in named if not (ROOT / name).exists()]


def drawn_layers(page: str) -> dict[str, int]:
    """{room: layer} of the drawing in docs/design/packages.md; a line without a number belongs to the one above."""
    layers: dict[str, int] = {}
    layer = -1
    for line in page.split("```text\n")[1].split("```")[0].splitlines():
        layer = int(line[:3]) if line[:3].strip() else layer
        names = re.findall(r"\b([a-z]+(?:/[a-z_]+)*)/", line)
        layers |= dict.fromkeys((name.replace("/", ".") for name in names), layer)
    return layers


def test_the_drawn_layers_are_those_that_are_tested():
    from tests.test_layers import LAYERS

    assert drawn_layers((ROOT / "docs/design/packages.md").read_text()) == {
        room: n for room, n in LAYERS.items() if room
    }


# ------------------------------------------------------------------------------------------------ the reference


def test_the_reference_has_every_public_name_and_every_room():
    import workbench

    page = public_page(ROOT / "workbench")
    assert not [name for name in workbench.PUBLIC if f"[`wb.{name}`]" not in page]
    rooms = {room_of(name) for name in modules(ROOT / "workbench")} - {""}
    assert all(room_page(ROOT / "workbench", room).startswith(f"# {room}") for room in rooms)


def test_a_lazy_name_is_followed_to_where_it_is_defined():
    module, node = resolve(ROOT / "workbench", "workbench.look", "show_masks")
    assert module.name.startswith("workbench.look.") and node.name == "show_masks"
    assert resolve(ROOT / "workbench", "workbench.look", "no_such_name") is None


def test_docstrings_keep_their_layout_and_nothing_in_them_acts():
    text = as_markdown(
        "Sum of *all* <b>.\n\n    A = B + C\n\nname    meaning\nother   more\n\nThen `x*y` ends."
    )
    assert "\\*all\\* \\<b>" in text and "```text\n    A = B + C" in text
    assert "name    meaning" in text and "`x*y`" in text
    assert (
        first_sentence("What it is: a thing. More.") == "What it is: a thing."
        and first_sentence(None) == ""
    )
    node = ast.parse('class A:\n    """It."""\n    x: int = 1\n    def f(self, y): "Does."').body[0]
    assert "{py:class} A(x=1)" in entry(node) and "{py:method} f(y)" in entry(node)


def test_pages_of_the_package_say_what_the_package_says():
    from docs.make.tables import commands_page, rules_page, settings_page
    from workbench.training.config import load_config, to_dict

    settings = settings_page()
    for key in ("train.steps", "learner.lr", "algorithm.masks", "lint.mode", "env.max_turns"):
        assert f"`{key}" in settings, key
    parts = set(to_dict(load_config("frozenlake"))) - {"format"}  # which is no setting
    assert all(f"## {part}" in settings for part in parts)
    assert (
        "## workbench train" in commands_page()
        and "`--set`" in commands_page()
        and "## R24" in rules_page()
    )


# ------------------------------------------------------------------------------------------------ the site


@pytest.mark.full
def test_the_site_builds_without_a_warning_and_asks_for_nothing_outside(tmp_path):
    if not all(_there(name) for name in ("sphinx", "myst_nb", "pydata_sphinx_theme")):
        reason = "needs the extra docs: pip install -e '.[docs]'"
        pytest.fail(reason) if os.environ.get("WORKBENCH_CI") == "1" else pytest.skip(reason)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(tmp_path / "kept"),
    ]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pages = list((tmp_path / "site").rglob("*.html"))
    made = {str(page.relative_to(tmp_path / "site")) for page in pages}
    assert {
        "index.html",
        "notebooks/00_tour.html",
        "reference/made/settings.html",
        "evidence/demo.html",
    } <= made
    outside = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?:https?:)?//[^"]+"')
    asked = {match for page in pages for match in outside.findall(page.read_text(encoding="utf-8"))}
    assert not asked, f"the built pages ask for {sorted(asked)[:5]}"


def _there(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None
