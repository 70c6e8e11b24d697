"""What goes out to TensorBoard is what the run folder holds: every number of it, and nothing that was not computed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.store_values import ordinary_step
from workbench import cli
from workbench.extensions.interop.export import export_run
from workbench.extensions.track import tracker
from workbench.extensions.track.export import number_items
from workbench.extensions.track.items import plain_settings
from workbench.run.recording import create_run
from workbench.run.store import open_run
from workbench.values.errors import ConfigError, StoreError

CONFIG = {
    "seed": 3,
    "learner": {"lr": 2e-4, "layers": [1, 2], "clip": None},
    "env": {"name": "lake", "think": True},
}
ROW = {
    "policy": "trained",
    "mode": "sampled",
    "n": 8,
    "success": 0.5,
    "success_low": 0.25,
    "success_high": 0.75,
    "faults": None,
}
PAIR = {
    "a": "untrained sampled",
    "b": "trained sampled",
    "difference": 0.125,
    "low": -0.1,
    "high": 0.3,
}


@pytest.fixture
def run(tmp_path):
    with create_run(tmp_path / "first", CONFIG) as run:
        run.write_evaluation(
            "step-00000000",
            {"step": 0, "rows": [ROW | {"policy": "random", "success": 0.2}], "paired": []},
        )
        for step in (1, 2):
            run.write_step(step, ordinary_step(step))
            metrics = {"reward_mean": 0.1 * step, "success": None, "updates": step} | (
                {"kl": 1e-9} if step == 2 else {}
            )
            run.commit_step(step, metrics, {"collect_s": 0.5 * step})
        run.write_evaluation("step-00000002", {"step": 2, "rows": [ROW], "paired": [PAIR]})
    return open_run(tmp_path / "first")


EXPECTED = {
    0: {
        "held_out/random/sampled/n": 8,
        "held_out/random/sampled/success": 0.2,
        "held_out/random/sampled/success_low": 0.25,
        "held_out/random/sampled/success_high": 0.75,
    },
    1: {"train/reward_mean": 0.1, "train/updates": 1, "clock/collect_s": 0.5},
    2: {
        "train/reward_mean": 0.2,
        "train/updates": 2,
        "train/kl": 1e-9,
        "clock/collect_s": 1.0,
        "held_out/trained/sampled/n": 8,
        "held_out/trained/sampled/success": 0.5,
        "held_out/trained/sampled/success_low": 0.25,
        "held_out/trained/sampled/success_high": 0.75,
        "paired/trained-sampled_minus_untrained-sampled/difference": 0.125,
        "paired/trained-sampled_minus_untrained-sampled/low": -0.1,
        "paired/trained-sampled_minus_untrained-sampled/high": 0.3,
    },
}
SETTINGS = {
    "seed": 3,
    "learner.lr": 2e-4,
    "learner.layers": "[1, 2]",
    "learner.clip": "none",
    "env.name": "lake",
    "env.think": True,
}


def test_every_number_is_there_and_what_was_not_computed_is_not(run):
    records: dict[int, dict[str, float]] = {}
    for item in number_items(run):
        records.setdefault(item.step, {}).update(item.numbers)
    assert records == EXPECTED and list(records) == [0, 1, 2]
    assert plain_settings(run) == SETTINGS


def test_tensorboard_reads_every_number_back(run, tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install -e '.[test]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    command = ["export", str(run.path), "--to", "tensorboard", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "18 numbers of 3 steps" in said and f"tensorboard --logdir {tmp_path}/out" in said
    assert cli.main(command) == 2, "a second time would be drawn into the first"
    assert "choose another --out, or remove it" in capsys.readouterr().err.lower()
    events = EventAccumulator(str(tmp_path / "out" / "first"), size_guidance={"scalars": 0})
    events.Reload()
    read: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            read.setdefault(event.step, {})[tag] = event.value
    wanted = {
        step: {name: float(np.float32(value)) for name, value in row.items()}
        for step, row in EXPECTED.items()
    }
    assert read == wanted, "TensorBoard keeps 32 bits of a number"
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    found = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert {name: _plain(value) for name, value in found.items()} == SETTINGS | {
        "digest": run.digest()
    }


def _plain(value):
    return getattr(value, value.WhichOneof("kind"))


def test_what_cannot_be_done_is_said_with_what_to_do(run, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="'mlflow'; expected one of tensorboard, trl-sft"):
        export_run(run, "mlflow")
    with pytest.raises(ConfigError, match="'wandb'; expected one of tensorboard"):
        export_run(run, "wandb")
    with pytest.raises(StoreError, match="inside the run folder"):
        export_run(run, "tensorboard", run.path / "logs")
    (tmp_path / "out/first").mkdir(parents=True)
    with pytest.raises(StoreError, match="is there already"):
        export_run(run, "tensorboard", tmp_path / "out")
    monkeypatch.setattr(tracker, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        export_run(run, "tensorboard", tmp_path / "other")
