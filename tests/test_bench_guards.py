"""The benchmark of guards leaves out what it says it leaves out, and puts it back."""

from __future__ import annotations

import json
import subprocess
import sys

# Every loaded module is changed by the benchmark, so it is asked in a process of its own.
ASKED = """
import json
import workbench as wb
from experiments.bench.guards import Guards
import workbench.run.store
from workbench.values import Observation
from workbench.values.errors import WorkbenchError

def refused():
    try:
        Observation(("no message",))
    except WorkbenchError:
        return True
    return False

guards = Guards()
found = []
for guards.on in (True, False, True):
    found.append(refused())
print(json.dumps({"refused": found, "names": guards.names}))
"""


def test_guards_are_left_out_and_put_back():
    ended = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=120, check=True
    )
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["refused"] == [True, False, True]
    assert len(said["names"]) == len(set(said["names"]))
    expected = {"as_parts", "frozen_array", "check_state", "FolderLock.gone"}
    assert expected <= set(said["names"])
    assert any(name.startswith("Run.") for name in said["names"])
