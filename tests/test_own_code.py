"""Invariants 16 and 17 of stored runs: where code by name came from, when it is imported, and what goes without it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import pytest

import workbench as wb
from workbench.basics import canonical_json, plugins
from workbench.basics.plugins import MOVED, load_named
from workbench.cli import main
from workbench.look.cells.replay import replay
from workbench.run import code
from workbench.run.code import changed_code, named_code, why_foreign
from workbench.run.recording import reopen_run
from workbench.run.store import open_run
from workbench.training.config import PRESETS, load_config, to_dict
from workbench.training.resume import resumption
from workbench.training.stored import config_of_run, stored_config
from workbench.values.errors import ConfigError

PAGES = Path(__file__).resolve().parents[1] / "docs/extend"
SMALL = {
    "train.steps": 1,
    "train.tasks_per_step": 2,
    "train.group_size": 2,
    "evaluation.num_tasks": 2,
    "lint.start": False,
    "collect.max_turn_tokens": 8,
    "env.max_turns": 2,
}
OWN = {"env.kind": "law_env:Guessing", "algorithm.kind": "law_algo:LENGTH_GRPO"}
STORED = OWN | {"algorithm.objective.kind": "law_algo:LengthObjective"}  # which is in the algorithm


def page(name: str, block: str) -> str:
    return re.search(
        rf"<!-- {block} -->\n```python\n(.*?)```", (PAGES / name).read_text(), re.DOTALL
    )[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with two modules of a user, and a run that they made. Importing one leaves a mark."""
    folder = tmp_path_factory.mktemp("own")
    for name, text in (
        ("law_env", page("environment.md", "an environment")),
        ("law_algo", page("algorithm.md", "an algorithm")),
    ):
        mark = f"__import__('pathlib').Path({str(folder / 'mark')!r}).touch()\n"
        future = "from __future__ import annotations\n" if "from __future__" in text else ""
        (folder / f"{name}.py").write_text(future + mark + text.replace(future or "\0", ""))
    sys.path.insert(0, str(folder))
    wb.train_here(load_config("frozenlake", OWN | SMALL), folder / "run", on_note=None)
    sys.path.remove(str(folder))
    forget()
    return folder


def forget() -> None:
    for name in ("law_env", "law_algo"):
        sys.modules.pop(name, None)


@pytest.fixture
def own(made, tmp_path, monkeypatch):
    """The same in a folder of its own that is looked in, not imported yet."""
    shutil.copytree(made, tmp_path / "own")
    forget()
    (made / "mark").unlink(missing_ok=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "own"), *(each for each in sys.path if each)])
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "own"
    forget()


def was_imported(made) -> bool:
    return (made / "mark").exists()


# ------------------------------------------------------------------------------------------------ where it came from


def test_a_run_remembers_where_its_code_came_from(own):
    origins = json.loads((own / "run/code.json").read_text())["content"]["origins"]
    assert {key: value["name"] for key, value in origins.items()} == STORED
    assert origins["env.kind"]["source"] == sha256((own / "law_env.py").read_bytes()).hexdigest()
    found = wb.lint(own / "run")
    assert found.ok and "code" not in found.report.about
    report, notes = replay(own / "run", 1)
    assert report.equal and not notes
    key = Path(os.environ["XDG_STATE_HOME"]) / "agent-rl-workbench/key"
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == 32
    assert key.read_bytes().hex() not in (own / "run/code.json").read_text()


def test_a_run_of_the_package_alone_has_no_such_file():
    for preset in PRESETS.values():
        assert code.code_file(to_dict(preset)) == (None, "")


def test_code_that_changed_is_told_and_resume_refuses_unless_told(own, capsys):
    with open(own / "law_env.py", "a") as file:
        file.write("# a change\n")
    run = open_run(own / "run")
    [words] = changed_code(run)
    assert (
        "law_env:Guessing (env.kind) is not the code that the run was made with: source checksum"
        in words
    )
    assert words in wb.lint(run).report.about and replay(run, 1)[1] == (words,)
    with pytest.raises(ConfigError, match="is not the code.*--accept-changed-code"):
        resumption(run, {"train.steps": 2})
    notes: list[str] = []
    assert wb.resume_here(own / "run", on_note=notes.append).steps() == [
        1
    ]  # nothing is left to do, so nothing is refused
    assert main(["resume", str(own / "run")]) == 0
    [note] = notes
    assert (
        note
        == capsys.readouterr().out.strip()
        == f"{own / 'run'} is already complete: 1 steps; nothing was changed. {words}"
    )
    notes.clear()
    wb.resume_here(own / "run", {"train.steps": 2}, on_note=notes.append, accept_changed_code=True)
    assert words in notes and "code" in [event["kind"] for event in run.events()]
    assert run.steps() == [1, 2] and not changed_code(run)
    resumption(run, {"train.steps": 3})  # what was accepted once is what it is held against


def test_the_source_is_read_once_for_a_resume(own, monkeypatch):
    seen, whole = [], plugins._checksum
    monkeypatch.setattr(plugins, "_checksum", lambda module: seen.append(module) or whole(module))
    assert main(["resume", str(own / "run"), "--set", "train.steps=2"]) == 0
    assert sorted(seen) == sorted(name.partition(":")[0] for name in STORED.values())


# ------------------------------------------------------------------------------------------------ when it is imported


def other_key(run: Path, monkeypatch):
    state = run.parent / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    code.code_file({"env": {"kind": "a:B"}})  # makes one
    return "was not made by this user on this machine"


def no_key(run: Path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(run.parent / "state"))
    return "has made no run of such code"


def open_key(run: Path, monkeypatch):
    shutil.copytree(os.environ["XDG_STATE_HOME"], run.parent / "state")
    monkeypatch.setenv("XDG_STATE_HOME", str(run.parent / "state"))
    (run.parent / "state/agent-rl-workbench/key").chmod(0o644)
    return "others may read"


def short_key(run: Path, monkeypatch):
    no_key(run, monkeypatch)
    (run.parent / "state/agent-rl-workbench").mkdir(parents=True)
    (run.parent / "state/agent-rl-workbench/key").touch(0o600)
    return "holds no key"


def no_seal(run: Path, monkeypatch):
    (run / "code.json").unlink()
    return "nothing says that it was made on this machine"


def edited_config(run: Path, monkeypatch):
    config = open_run(run).config
    config["env"]["max_turns"] = 99
    (run / "config.json").write_bytes(canonical_json.sealed_json(config, kind="config", version=1))
    return "or was edited since"


def edited_origins(run: Path, monkeypatch):
    content = canonical_json.read_sealed_json(run / "code.json", kind="code", version=1)
    content["origins"]["env.kind"]["source"] = "0" * 64
    (run / "code.json").write_bytes(canonical_json.sealed_json(content, kind="code", version=1))
    return "or was edited since"


def no_signature(run: Path, monkeypatch):
    content = canonical_json.read_sealed_json(run / "code.json", kind="code", version=1) | {
        "seal": None
    }
    (run / "code.json").write_bytes(canonical_json.sealed_json(content, kind="code", version=1))
    return "or was edited since"


def changed_settings(run: Path, monkeypatch):
    with reopen_run(run) as writer:
        writer.change_settings({"env.max_turns": [2, 3]})
    return "settings were changed since"


def named_later(run: Path, monkeypatch):
    with reopen_run(run) as writer:
        writer.change_settings({"policy.name": ["frozenlake-tiny", "law_env:Guessing"]})
    return "settings were changed since"


FOREIGN = (
    other_key,
    no_key,
    open_key,
    short_key,
    no_seal,
    edited_config,
    edited_origins,
    no_signature,
    changed_settings,
    named_later,
)


@pytest.mark.parametrize("how", FOREIGN, ids=lambda how: how.__name__)
def test_a_foreign_run_imports_nothing(own, made, monkeypatch, how):
    assert why_foreign(open_run(own / "run")) == ""  # as it was made
    said = how(own / "run", monkeypatch)
    run = open_run(own / "run")
    assert said in why_foreign(run) and "--trust" in why_foreign(run)
    stored = stored_config(run)
    assert (
        stored.config.env is None
        and stored.config.algorithm is None
        and set(stored.missing) == {"env", "algorithm"}
    )
    assert config_of_run(run, needs=()).policy.name
    with pytest.raises(ConfigError, match="--trust"):
        config_of_run(run)
    with pytest.raises(ConfigError, match="--trust"):
        resumption(run, {})
    assert not was_imported(made)
    assert config_of_run(open_run(run, trust=True)).env.name == "guess"
    assert was_imported(made)  # the mark would have been there


def test_every_door_of_a_foreign_run_imports_nothing(own, made, monkeypatch, capsys):
    no_key(own / "run", monkeypatch)
    run = str(own / "run")
    for command, status in (
        (["lint", run], 0),
        (["show", run], 0),
        (["show", run, "1"], 0),
        (["export", run, "weights"], 0),
        (["replay", run, "1"], 2),
        (["resume", run], 2),
        (["chat", run, "--ask", "1"], 2),
        (["evaluate", run], 2),
        (["rollout", run], 2),
        (["audit", run], 2),
        (["train", f"{run}/config.json"], 2),
    ):
        assert main(command) == status, command
        told = capsys.readouterr()
        assert ("--trust" in told.out + told.err) == (command[0] not in ("show", "export")), command
        assert not was_imported(made), command
    for call in (
        lambda: wb.reopen(run),
        lambda: wb.show_replay(run, 1),
        lambda: wb.edit_step(run, 1),
        lambda: wb.talk(run),
        lambda: wb.resume(run),
        lambda: wb.resume_here(run),
        lambda: wb.audit(run),
    ):
        with pytest.raises(ConfigError, match="--trust"):
            call()
        assert not was_imported(made)
    assert main(["replay", run, "1", "--trust"]) == 0 and was_imported(made)
    assert wb.reopen(run, trust=True).config.env.name == "guess"
    assert wb.lint(run, trust=True).ok


def test_where_no_key_can_be_kept_the_run_is_made_and_foreign_later(own, monkeypatch):
    (own / "state").write_text("a file, no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "state"))
    content, words = code.code_file({"env": {"kind": "law_env:Guessing"}})
    assert content is not None and "later it needs --trust" in words
    assert b'"seal": null' in content


@pytest.mark.parametrize(
    "text, names",
    [
        ("my_env:Guess", True),
        ("a.b.c:d.e", True),
        ("my_mod:enc(BAAI/bge large)", True),
        ("mcp:stdio npx -y server /tmp", True),
        ("gym_mod:Env-v0", True),
        ("workbench:import_module(evil)", True),
        ("workbench.extensions.servers.mcp:mount(sh)", True),
        ("workbench.extensions.servers.encoder:encoderx(evil)", True),
        ("workbench.tools.calculator:calculator.__class__", True),
        ("workbench.extensions.servers.encoder:encoder(BAAI/bge)", False),
        ("workbench.tools.calculator:calculator", False),
        ("workbench.engines.encoder:encoder(BAAI/bge)", False),
        ("workbench.envs.tools.calculator:calculator", False),
        ("http://127.0.0.1:80/v1", False),
        ("localhost:8080", False),
        ("frozenlake", False),
        ("Answer: yes", False),
        ("data/x.json", False),
        ("C:\\models", False),
    ],
)
def test_what_names_code(text, names):
    tree = {
        "env": {"kind": "x", "tools": ["search", text]},
        "policy": {"template_flags": {"date": "a:b"}},
    }
    assert named_code(tree) == ({"env.tools[1]": text} if names else {})


# ------------------------------------------------------------------------------------------------ what goes without it


def test_a_run_whose_code_is_gone_is_shown_linted_and_exported(own, monkeypatch):
    for name in ("law_env", "law_algo"):
        (own / f"{name}.py").unlink()
    run = open_run(own / "run")
    found = wb.lint(run)
    assert (
        found.ok
        and "what needs its algorithm is not checked: algorithm.kind 'law_algo:LENGTH_GRPO'"
        in found.report.about
    )
    assert "PYTHONPATH" in found.report.about and "is not the code" not in found.report.about
    answers = {answer.rule: answer for answer in found.report}
    assert answers["R20"].missing and answers["R20"].status == "partly checked", (
        "only what training itself could check, and never passed"
    )
    assert wb.show(run).text and wb.show(run, step=1).text
    assert "weights in float32" in wb.export_policy(run, own / "weights").text
    for call in (
        lambda: wb.reopen(run),
        lambda: wb.show_replay(run, 1),
        lambda: wb.resume_here(own / "run"),
    ):
        with pytest.raises(ConfigError, match="law_.*cannot be imported: there is no module"):
            call()


def test_credit_is_replayed_where_only_the_environment_is_gone(own):
    (own / "law_env.py").unlink()
    assert replay(own / "run", 1)[0].equal
    assert set(stored_config(open_run(own / "run")).missing) == {"env"}


def test_a_name_that_a_run_holds_from_before_the_modules_moved_is_found():
    for old, new in MOVED.items():
        assert load_named(old, "a stored name") is load_named(new, "its name now")
