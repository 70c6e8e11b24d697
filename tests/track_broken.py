"""`workbench track` with a fault: `python -m tests.track_broken FAULT CALL RUN --to NAME ...`.

At the CALL-th batch its process is killed `before` it is handed over, `within` (one item of it was handed over), `after` (the
tracker has it and the cursor does not say so); or the tracker `hangs`, or has `no_room`. `double` is killed as after, and
later never asks what the tracker holds.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time

from workbench.cli import main
from workbench.extensions.track import sending
from workbench.extensions.track.to_mlflow import MLflow
from workbench.extensions.track.to_tensorboard import TensorBoard
from workbench.extensions.track.to_trackio import Trackio
from workbench.extensions.track.to_wandb import Wandb

FAULT, CALL = sys.argv[1], int(sys.argv[2])
CALLS = [0]


def broken(send):
    def send_broken(self, items):
        CALLS[0] += 1
        if CALLS[0] != CALL:
            return send(self, items)
        if FAULT == "hangs":
            time.sleep(600)
        if FAULT == "no_room":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if FAULT == "within":
            send(self, items[:1])
        if FAULT in ("after", "double"):
            send(self, items)
        os.kill(os.getpid(), signal.SIGKILL)

    return send_broken


sending.MOST_ITEMS = 3
sending.FIRST_PAUSE_S = 0.1
for tracker in (MLflow, TensorBoard, Trackio, Wandb):
    tracker.send = broken(tracker.send)
    tracker.pause_s = lambda self, elapsed_s: 0.05
    if FAULT == "double":
        tracker.held = lambda self, item: set()
        Trackio._check_written = lambda self, items: None  # it would ask, too
sys.exit(main(["track", *sys.argv[3:]]))
