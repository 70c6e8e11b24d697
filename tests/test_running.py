"""A run in its own process: started, waited for, stopped, failed."""
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.test_train import tiny
from workbench.cells.running import RunningRun, fresh_path, train
from workbench.cells.train import train_here
from workbench.errors import LearnerError, StoreError


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train_here(tiny(), tmp_path_factory.mktemp("runs") / "a")


def test_a_run_that_was_stopped_is_returned_as_far_as_it_came(finished):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    running = RunningRun(finished.path, process, 5)
    running.stop()
    assert running.wait().steps() == [1, 2]
    killed = RunningRun(finished.path, subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]), 5)
    Path(f"{finished.path}.log").write_text("out of memory")
    with pytest.raises(LearnerError, match="status -9; its log ends:\nout of memory"):  # that was not us
        killed.wait()


def test_a_run_trains_in_its_own_process_and_is_never_overwritten(tmp_path):
    path = tmp_path / "own"
    run = train(tiny(train__steps=1), path).wait()
    assert run.steps() == [1] and np.isfinite(run.metrics()["reward_mean"]).all()
    with pytest.raises(StoreError, match="never overwritten"):
        train(tiny(), path)
    assert fresh_path(path).name == "own-2"


def test_a_run_that_fails_in_its_process_shows_the_end_of_its_log(tmp_path):
    with pytest.raises(LearnerError, match="no-such-policy"):
        train(tiny(policy__name="./no-such-policy"), tmp_path / "bad").wait()
    again = train(tiny(), tmp_path / "bad")  # what the failed try left beside the folder is in nobody's way
    again.stop()
    again.process.wait()
