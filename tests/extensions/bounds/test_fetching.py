"""What a run names is not fetched from the hub unasked: not by any command, but where the user trusts the run."""

from __future__ import annotations

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

import workbench as wb
from workbench.cli import run as command
from workbench.engines import policy
from workbench.extensions.bounds import fetching
from workbench.look.cells import stored
from workbench.values.errors import WorkbenchError

FEW = {
    "train.steps": 2,
    "train.tasks_per_step": 1,
    "train.group_size": 2,
    "evaluation.num_tasks": 2,
    "train.evaluate_every": 0,
}
COMMANDS = [
    ["show", "RUN", "1"],
    ["lint", "RUN"],
    ["rollout", "RUN", "--tasks", "1"],
    ["evaluate", "RUN", "--tasks", "1"],
    ["export", "RUN", "OUT"],
    ["replay", "RUN", "1"],
    ["resume", "RUN", "--set", "train.steps=3"],
    ["train", "RUN/config.json", "--out", "OUT"],
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    return wb.train_here(wb.load_config("bandit", FEW), folder, on_note=None).path


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """Names that were asked for on the hub, where no policy ships and nothing is in the cache."""
    names: list[str] = []

    def snapshot(name, *, local_files_only=False, **_):
        if not local_files_only:
            names.append(name)
        raise LocalEntryNotFoundError("not here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(policy, "SHIPPED", tmp_path / "none")
    monkeypatch.setattr(fetching, "shipped_folder", lambda: tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    stored.texts_of_tokenizer.cache_clear()
    yield names
    stored.texts_of_tokenizer.cache_clear()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_no_command_fetches_what_a_run_names(made, fetched, tmp_path, words, capsys):
    places = {"OUT": str(tmp_path / "out")}
    status = command([places.get(word, word.replace("RUN", str(made))) for word in words])
    assert fetched == []
    output = capsys.readouterr()
    if words[0] in ("rollout", "evaluate", "export", "resume", "train"):
        assert status == 2 and "not fetched unasked" in output.out + output.err


def test_who_trusts_the_run_has_it_fetched(made, fetched):
    """Negative control."""
    with pytest.raises(WorkbenchError, match="HF_HUB_OFFLINE"):
        wb.reopen(wb.open_run(made, trust=True))
    assert fetched == ["bandit-tiny"]


def test_what_is_here_and_what_can_be_no_name_is_left_to_the_loader(tmp_path, monkeypatch):
    assert fetching.why_not_fetched("bandit-tiny") == ""
    assert fetching.why_not_fetched(str(tmp_path)) == ""
    for no_name in ("../x/y/z", "x" * 5_000, "~nobody/x", "a\0b"):
        assert fetching.why_not_fetched(no_name) == ""
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: str(tmp_path))
    assert fetching.why_not_fetched("owner/model") == ""
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    assert "hf download owner/model" in fetching.why_not_fetched("owner/model")
