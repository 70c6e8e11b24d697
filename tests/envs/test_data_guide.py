"""docs/guides/data.md, taken at its word: a data set with tools and a reward, a family of rows, an MCP task."""

import json
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

import workbench as wb
from tests.counts import reduced
from tests.test_readme_examples import ROOT, block_of
from workbench.run.code import named_code
from workbench.tools.formats import Hermes
from workbench.tools.shared_workers import shared_workers
from workbench.training.config import to_dict
from workbench.worlds import tasks
from workbench.worlds.rows import RowSettings

PAGE = "docs/guides/data.md"
SMALL = {
    "train.steps": 1,
    "train.tasks_per_step": 2,
    "train.group_size": 2,
    "evaluation.num_tasks": 2,
    "collect.max_turn_tokens": 8,
    "train.evaluate_every": 0,
    "lint.start": False,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that a reader works in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    for name in ("my_tools", "my_rewards", "note_task"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("trained", reduced([False, True], [False]))
def test_a_data_set_with_tools_and_a_reward(folder, trained):
    rows = [json.loads(line) for line in block_of("text", "rows", PAGE).splitlines()]
    rows += [
        row | {"question": f"{row['question']} And now, {n}?"} for n in range(9) for row in rows
    ]
    (folder / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "my_tools.py").write_text(block_of("python", "a tool", "docs/extend/tool.md"))
    (folder / "my_rewards.py").write_text(block_of("python", "a reward", PAGE))
    (folder / "mine.toml").write_text(block_of("toml", "settings of a data set", PAGE))
    config = wb.load_config("mine.toml", SMALL)
    assert set(named_code(to_dict(config))) == {"env.tools[0]", "env.reward"}
    task = tasks(config.env, "train", 1)[0]
    words, city = Hermes(), task.payload["question"].split("live in ")[1].split("?")[0]
    with closing(config.env.make()) as env:
        env.reset(task, 0)
        found = (
            env.step(words.write_call("population", {"city": city})).observation.messages[0].text
        )
        paid = env.step(words.write_answer(found))
    assert (
        paid.reward_parts == {"format": 0.0, "right": 1.0, "looked": 0.1}
        and paid.info["success"] is True
    )
    shared_workers().shutdown()
    if not trained:
        return
    run = wb.train_here(config, folder / "run")
    assert {group[0].task.metadata["from"].split(",")[0] for group in run.groups(1)} == {
        "people.jsonl"
    }


def test_a_family_of_rows(folder):
    names = {"__name__": "asking"}
    exec(block_of("python", "a family of rows", PAGE), names)
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"question": f"{n}?", "answer": str(n)}) + "\n" for n in range(20))
    )
    family = names["Asking"](RowSettings(("a.jsonl",)))
    [task] = tasks(family, "train", 1)
    env = family.make()
    assert env.reset(task, 0).messages[0].text == task.payload["question"]
    assert env.step(task.payload["answer"]).info["success"] is True


@pytest.mark.full
def test_an_mcp_task_is_judged_by_the_servers_state(folder):
    (folder / "titles.jsonl").write_text(
        "".join(json.dumps({"title": f"note{n}"}) + "\n" for n in range(10))
    )
    (folder / "note_task.py").write_text(block_of("python", "a check of the state", PAGE))
    (folder / "notes_server.py").write_text((Path(__file__).parent / "notes_server.py").read_text())
    text = block_of("toml", "settings of an MCP task", PAGE)
    assert "mcp:stdio python notes_server.py" in text
    (folder / "mine.toml").write_text(text.replace("stdio python", f"stdio {sys.executable}"))
    family = (config := wb.load_config("mine.toml")).env
    assert set(named_code(to_dict(config))) == {
        "env.tools[0]",
        "env.reward",
        "env.prepare",
    }  # commands count as code
    [task] = tasks(family, "train", 1)
    words = Hermes()
    with closing(family.make()) as env:
        env.reset(task, 0)
        assert (env.folder / "old.txt").exists()
        env.step(words.write_call("add_note", {"title": task.payload["row"]["title"], "text": "x"}))
        assert env.step(words.write_answer("done")).reward_parts == {"format": 0.0, "noted": 1.0}
