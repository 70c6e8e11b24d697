"""Plans of ablations for the tests: two arms of the bandit that differ in one setting, and whatever stands around them."""

from __future__ import annotations

from pathlib import Path

from workbench.extensions.ablation.plan import Plan
from workbench.extensions.ablation.reading import read_plan

TWO_ARMS = """[arms.plain]
label = "plain"
base = "bandit"
[arms.std]
label = "divided"
base = "bandit"
set = { "algorithm.estimator.normalize_std" = true }
"""


def two_arms(title: str, above: str = "", below: str = "") -> str:
    """The text of such a plan, which compares the two."""
    return f'title = "{title}"\ncompare = [["std", "plain"]]\n{above}{TWO_ARMS}{below}'


def plan_in(folder: Path, text: str, old: str = "", new: str = "") -> Plan:
    """The plan of this text, with `old` replaced by `new` where it stands first."""
    assert old in text
    (folder / "bandit.toml").write_text(text.replace(old, new, 1) if old else text)
    return read_plan(folder / "bandit.toml")
