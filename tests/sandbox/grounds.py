"""What escapes are tried against: a secret, a folder, a server and a process outside; supplies of boxes for root and for nobody."""
from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.sandbox.escapes import ESCAPES
from workbench.envs.sandbox.boxes import SandboxSettings, open_sandbox
from workbench.envs.sandbox.limits import TIERS
from workbench.envs.sandbox.supply import BoxPool, shared_supply

NOBODY = 65534
CANARY = "sk-canary-0815"
USERS = ("root", "nobody")
PACKAGE = Path(__file__).resolve().parents[2] / "workbench"


def need_tier(tier: str) -> None:
    """Skip where this system does not grant it; why stands in the words."""
    if reason := shared_supply().why_not(tier):
        pytest.skip(f"tier {tier}: {reason}")


@pytest.fixture(autouse=True)
def a_tier_works() -> None:
    """For a module that imports it: skip where no tier that is chosen by itself is granted."""
    reasons = [shared_supply().why_not(tier) for tier in ("namespaces", "landlock")]
    if all(reasons):
        pytest.skip(f"no tier works: {reasons}")


def python_for(user: str) -> str | None:
    """An interpreter that this user can run, None where there is none."""
    if user == "root":
        return sys.executable
    able = f"import sys, os; sys.exit(sys.version_info < (3, 11) or not os.access({str(PACKAGE)!r}, os.R_OK | os.X_OK))"
    for path in (sys.executable, "/usr/bin/python3"):
        with suppress(OSError):
            if subprocess.run([path, "-S", "-c", able], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/").returncode == 0:
                return path
    return None


_SUPPLIES: dict[str, BoxPool | str] = {}


def supply_for(user: str) -> BoxPool | str:
    """Or why there is none."""
    if user not in _SUPPLIES:
        _SUPPLIES[user] = _supply(user)
    return _SUPPLIES[user]


def _supply(user: str) -> BoxPool | str:
    if sys.platform != "linux":
        return "boxes are made for Linux"
    if os.geteuid() != 0:
        return BoxPool() if user == "nobody" else "the tests do not run as root"
    python = python_for(user)
    if python is None:
        return "no interpreter from 3.11 on, or no package, that nobody may read"
    return BoxPool(python, None if user == "root" else NOBODY)


def why_not(user: str, tier: str) -> str:
    """Why boxes of this tier cannot be had as this user, "" where they can."""
    supply = supply_for(user)
    return supply if isinstance(supply, str) else supply.why_not("namespaces" if tier == PROGRAMS else tier)


PROGRAMS = "namespaces, with programs"
WORKING = [(user, tier) for user in USERS for tier in (*TIERS, PROGRAMS, "bubblewrap")]


@contextmanager
def grounds(user: str) -> Iterator[dict[str, object]]:
    """The values that escapes name."""
    folder = Path(tempfile.mkdtemp(prefix="grounds-"))
    folder.chmod(0o777)
    secret = folder / "secret"
    secret.write_text(CANARY)
    (folder / "linked").write_text("x")
    switch = _as(user)
    for path in (secret, folder / "linked"):
        if switch:
            os.chown(path, NOBODY, NOBODY)
    server, abstract = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0escapes-{os.getpid()}")
    abstract.listen()
    victim = subprocess.Popen(["/bin/sleep", "600"], env={"CANARY": CANARY}, **switch)
    try:
        yield {"secret": secret, "folder": folder, "port": server.getsockname()[1], "name": f"escapes-{os.getpid()}",
               "victim": victim.pid}
    finally:
        victim.kill()
        victim.wait()
        server.close()
        abstract.close()
        shutil.rmtree(folder)


def _as(user: str) -> dict[str, object]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if user == "nobody" and os.geteuid() == 0 else {}


def outside(user: str, name: str, values: dict[str, object]) -> bool:
    """Whether an escape gets out where there is no box."""
    work = Path(tempfile.mkdtemp(prefix="outside-", dir=values["folder"]))
    work.chmod(0o777)
    held = os.open("/", os.O_RDONLY)
    python = supply_for(user).python
    done = subprocess.run([python, "-S", "-c", ESCAPES[name].format(**values)], capture_output=True, text=True, timeout=60, cwd=work,
                          env={"CANARY": CANARY}, pass_fds=[held], **_as(user))
    os.close(held)
    return "ESCAPED" in done.stdout.splitlines()


def inside(user: str, tier: str, name: str, values: dict[str, object]) -> str:
    """What an escape said in a box of its own."""
    settings = SandboxSettings(seconds=10.0, deterministic=False, warm=0,
                               **({"tier": "namespaces", "programs": True} if tier == PROGRAMS else {"tier": tier}))
    with open_sandbox(settings, supply_for(user)) as sandbox:
        ran = sandbox.run(ESCAPES[name].format(**values))
        return f"{ran.text}\n{ran.said}"
