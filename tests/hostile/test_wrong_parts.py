"""Methods and values that take what others stored or made: a wrong one is refused in words."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

import workbench as wb
from tests.hostile.wrong_calls import wrong_values
from workbench.basics.findings import LintReport
from workbench.learn.batch import Batch
from workbench.look.cells.lint import Linted
from workbench.values.errors import ConfigError, DataError, WorkbenchError

ENDLESS = {"numbers without end", "numbers up to a trillion"}


def raw(function, right=()):
    """Which wrong values end in something else than an error of ours; a report is what may come of those that are right."""
    ended = {}
    for words, value in wrong_values().items():
        if words in ENDLESS | set(right):
            continue
        try:
            function(value)
            ended[words] = "was taken"
        except WorkbenchError:
            pass
        except Exception as error:
            ended[words] = repr(error)[:200]
    return ended


@pytest.fixture(scope="module")
def config():
    return wb.load_config("bandit")


def test_what_is_no_report_is_refused():
    report = LintReport((), "x")
    assert LintReport.from_dict(report.as_dict()) == report  # negative control
    assert raw(LintReport.from_dict) == {}
    for wrong in ({"answers": 5}, {"answers": [{}]}, {"answers": [{"findings": [{}]}]}):
        with pytest.raises(DataError, match="what LintReport.as_dict"):
            LintReport.from_dict(wrong)


def test_a_part_that_a_config_lacks_is_refused(config):
    assert config.kind_of("env") == "bandit"  # negative control
    assert raw(config.kind_of) == {}
    with pytest.raises(ConfigError, match="has the parts env, seed, .*; got 'nothing'"):
        config.kind_of("nothing")


def test_what_makes_no_batch_is_refused():
    assert raw(Batch.from_groups, {"groups of nothing"}) == {}


def test_texts_of_tokens_are_made_by_a_function():
    ended = raw(lambda value: Linted(LintReport(()), (), value))
    assert set(ended.values()) == {"was taken"}
    assert set(ended) <= {"None", "a function", "a class"} | {
        k for k in ended if callable(wrong_values()[k])
    }
    with pytest.raises(DataError, match="a function from token ids to their texts"):
        Linted(LintReport(()), (), "x")


def test_columns_are_asked_for_at_an_axis_and_at_numbers_that_are_there(config):
    with closing(wb.open_session(config, quiet=True)) as session:
        batch = Batch.from_groups(wb.rollout(session, 1, group_size=2))
    assert len(batch.columns_at("_N", torch.tensor([1]))["tag_N"]) == 1  # negative control
    assert raw(lambda value: batch.columns_at(value, torch.tensor([0]))) == {}
    taken = raw(lambda value: batch.columns_at("_N", value))
    assert set(taken.values()) <= {"was taken"}
    for wrong in ([-1], [2], [0.5]):
        with pytest.raises(DataError):
            batch.columns_at("_N", torch.tensor(wrong))
