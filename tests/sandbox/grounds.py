"""What escapes are tried against: a secret, a folder, a server and a process outside; pools of sandboxes for root and for nobody."""

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
from workbench.extensions.sandbox.limits import BY_COMMAND, TIERS
from workbench.extensions.sandbox.pool import SandboxPool, shared_pool
from workbench.extensions.sandbox.sandboxes import Sandbox, SandboxSettings, open_sandbox

NOBODY = 65534
CANARY = "sk-canary-0815"
USERS = ("root", "nobody")
PACKAGE = Path(__file__).resolve().parents[2] / "workbench"


def need_tier(tier: str) -> None:
    """Skip where this system does not grant it; why stands in the words."""
    if reason := shared_pool().why_not(tier):
        pytest.skip(f"tier {tier}: {reason}")


@pytest.fixture(autouse=True)
def a_tier_works() -> None:
    """For a module that imports it: skip where no tier that is chosen by itself is granted."""
    reasons = [shared_pool().why_not(tier) for tier in ("namespaces", "landlock")]
    if all(reasons):
        pytest.skip(f"no tier works: {reasons}")


def python_for(user: str) -> str | None:
    """An interpreter that this user can run, None where there is none."""
    if user == "root":
        return sys.executable
    able = f"import sys, os; sys.exit(sys.version_info < (3, 11) or not os.access({str(PACKAGE)!r}, os.R_OK | os.X_OK))"
    for path in (sys.executable, "/usr/bin/python3"):
        with suppress(OSError):
            if (
                subprocess.run(
                    [path, "-S", "-c", able], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/"
                ).returncode
                == 0
            ):
                return path
    return None


_POOLS: dict[str, SandboxPool | str] = {}


def pool_for(user: str) -> SandboxPool | str:
    """Or why there is none."""
    if user not in _POOLS:
        _POOLS[user] = _pool(user)
    return _POOLS[user]


def _pool(user: str) -> SandboxPool | str:
    if sys.platform != "linux":
        return "sandboxes are made for Linux"
    if os.geteuid() != 0:
        return SandboxPool() if user == "nobody" else "the tests do not run as root"
    python = python_for(user)
    if python is None:
        return "no interpreter from 3.11 on, or no package, that nobody may read"
    return SandboxPool(python, None if user == "root" else NOBODY)


def why_not(user: str, tier: str) -> str:
    """Why sandboxes of this tier cannot be had as this user, "" where they can."""
    pool = pool_for(user)
    if isinstance(pool, str):
        return pool
    if tier in OWN_USERS and user != "root":
        return "users of a sandbox's own need root outside"
    return pool.why_not("namespaces" if tier == PROGRAMS or tier in OWN_USERS else tier)


PROGRAMS = "namespaces, with programs"
# Sandboxes with users of their own, by whom the escape is tried as in them: an agent's code, a user that root made, root.
OWN_USERS = {
    "the agent of a sandbox with users": None,
    "another user of a sandbox": "other",
    "the root of a sandbox": "root",
}
WORKING = [
    (user, tier)
    for user in USERS
    for tier in (*TIERS, PROGRAMS, *OWN_USERS, *BY_COMMAND)
    if user == "root" or tier not in OWN_USERS
]
ADD_OTHER = (
    "import os\nopen('/etc/passwd', 'a').write('other:x:1001:1001::/home/other:/bin/sh\\n')\n"
    "os.mkdir('/home/other')\nos.chown('/home/other', 1001, 1001)"
)


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
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(str(folder / "datagrams"))
    (folder / "datagrams").chmod(0o777)
    victim = subprocess.Popen(["/bin/sleep", "600"], env={"CANARY": CANARY}, **switch)
    try:
        yield {
            "secret": secret,
            "folder": folder,
            "port": server.getsockname()[1],
            "name": f"escapes-{os.getpid()}",
            "victim": victim.pid,
        }
    finally:
        victim.kill()
        victim.wait()
        server.close()
        abstract.close()
        datagrams.close()
        shutil.rmtree(folder)


def _as(user: str) -> dict[str, object]:
    return (
        {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        if user == "nobody" and os.geteuid() == 0
        else {}
    )


def outside(user: str, name: str, values: dict[str, object]) -> bool:
    """Whether an escape gets out where there is no sandbox."""
    work = Path(tempfile.mkdtemp(prefix="outside-", dir=values["folder"]))
    work.chmod(0o777)
    held = os.open("/", os.O_RDONLY)
    python = pool_for(user).python
    done = subprocess.run(
        [python, "-S", "-c", ESCAPES[name].format(**values)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=work,
        env={"CANARY": CANARY},
        pass_fds=[held],
        **_as(user),
    )
    os.close(held)
    return "ESCAPED" in done.stdout.splitlines()


def inside(user: str, tier: str, name: str, values: dict[str, object]) -> str:
    """What an escape said in a sandbox of its own."""
    programs = tier == PROGRAMS or tier in OWN_USERS
    settings = SandboxSettings(
        seconds=10.0,
        deterministic=False,
        warm=0,
        tier="namespaces" if programs else tier,
        programs=programs,
    )
    with (
        open_sandbox(settings, pool_for(user), users=tier in OWN_USERS) as sandbox,
        as_user(sandbox, OWN_USERS.get(tier)) as runner,
    ):
        ran = runner.run(
            ("import os; os.chdir(os.environ['HOME'])\n" if OWN_USERS.get(tier) else "")
            + ESCAPES[name].format(**values)
        )
        return f"{ran.text}\n{ran.said}"


@contextmanager
def as_user(sandbox: Sandbox, name: str | None) -> Iterator[Sandbox]:
    """Code of this user's of the sandbox; None: its own. "other" is made first."""
    if name == "other" and b"other:" not in sandbox.start(["cat", "/etc/passwd"]).out:
        with as_user(sandbox, "root") as root:
            assert not root.run(ADD_OTHER).error
    runner = sandbox if name is None else sandbox.as_user(name)
    yield runner
    if runner is not sandbox:
        runner.connection.close()
