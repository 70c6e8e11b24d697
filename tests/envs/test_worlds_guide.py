"""What docs/guides/worlds.md shows runs as it stands, and its figures of chance are those that are measured."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from workbench.training.config import load_config
from workbench.values.seeds import rng_at
from workbench.worlds import PRESETS, tasks
from workbench.worlds.baselines import play

PAGE = (Path(__file__).resolve().parents[2] / "docs/guides/worlds.md").read_text()
BLOCKS = dict(re.findall(r"<!-- ([a-z-]+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
NEEDS = {"gymnasium": "gymnasium", "reasoning-gym": "reasoning_gym", "textarena": "textarena"}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_runs(name, capsys):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="needs the extra worlds")
    exec(compile(BLOCKS[name], name, "exec", dont_inherit=True), {})
    assert capsys.readouterr().out.strip()


def test_the_file_of_settings_opens(tmp_path):
    served, seated, _ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.toml").write_text(seated)
    assert (
        tomllib.loads(seated)["env"]["kind"] == "textarena"
        and load_config(tmp_path / "mine.toml").env.seat == 1
    )
    (tmp_path / "served.toml").write_text(served)
    assert load_config(tmp_path / "served.toml").env.shown == ("echoed_message",)


@pytest.mark.parametrize("preset", ["countdown", "countdown-ragen", "countdown-small"])
def test_chance_of_the_table(preset):
    stated = int(re.search(rf"\| `{preset}` .*\| (\d+) % \|", PAGE)[1]) / 100
    family, rng = PRESETS[preset], rng_at("guide")
    wins = [
        play(family, task, 0, lambda env: family.random_action(env, rng)).success
        for task in tasks(family, "held-out", 200) * 5
    ]
    assert abs(np.mean(wins) - stated) < 0.025
