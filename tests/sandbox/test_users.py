"""Users of a sandbox's own: another number of its user space, files that are not the other's, and a root that reaches no further."""

from __future__ import annotations

import os
import pwd
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sandbox.escapes import CTYPES
from tests.sandbox.grounds import as_user, need_tier, pool_for
from tests.sandbox.test_sandboxes import children_of
from workbench.extensions.sandbox import users
from workbench.extensions.sandbox.pool import SandboxPool
from workbench.extensions.sandbox.sandboxes import SandboxSettings, open_sandbox
from workbench.values.errors import ConfigError, ToolError

SETTINGS = SandboxSettings(programs=True, deterministic=False, warm=0, processes=12, seconds=20.0)
BEHIND = ("sleep", "sh")  # what a shell left behind, which may not have become `sleep` yet
SETUID = "import shutil, os\nshutil.copy('/usr/bin/id', '/tmp/id')\nos.chmod('/tmp/id', 0o6755)\nprint(os.stat('/tmp/id').st_mode & 0o6000)"
# What the root of a sandbox tries beyond what anybody in it does (`escapes`); each prints ESCAPED where it gets further than the sandbox's own users.
BY_ROOT = {
    "a number that is none of the sandbox's": "import os\nopen('f', 'w').close()\nfor n in (4096, 65432, 65534, 1 << 31, (1 << 32) - 2):\n"
    "    try: os.chown('f', n, -1)\n    except OSError: continue\n    print('ESCAPED')",
    "the owner of a device of the machine": "import os\nos.chown('/dev/null', 0, 0)\nprint('ESCAPED')",
    "the mode of a device of the machine": "import os\nos.chmod('/dev/null', 0o600)\nprint('ESCAPED')",
    "a program of the machine": "open('/usr/bin/env', 'r+b')\nprint('ESCAPED')",
    "a file beside the machine's": "open('/usr/lib/escaped', 'w')\nprint('ESCAPED')",
    "a file in the root folder": "open('/escaped', 'w')\nprint('ESCAPED')",
    "mount": CTYPES
    + "print('ESCAPED' if libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0 else '')",
    "mount bound elsewhere": CTYPES
    + "print('ESCAPED' if libc.mount(b'/usr/bin', b'/tmp', None, 0x1000, None) == 0 else '')",
    "the root folder, to be written": CTYPES
    + "print('ESCAPED' if libc.mount(b'x', b'/', None, 0x1020, None) == 0 else '')",
    "unmount": CTYPES + "print('ESCAPED' if libc.umount2(b'/etc', 2) == 0 else '')",
    "the folder of mounts": "import os\nprint('ESCAPED' if os.listdir('/kept') else '')\nopen('/kept/x', 'w')\nprint('ESCAPED')",
    "the name of a folder that is mounted": "import os\nos.rename('/etc', '/home/etc')\nprint('ESCAPED')",
    "another user without being asked": "import os\nfor n in (1000, 1001, 5):\n    try: os.setresuid(n, n, n)\n    except OSError: continue\n    print('ESCAPED')",
    "a group without being asked": "import os\nos.setresgid(1000, 1000, 1000)\nprint('ESCAPED')",
    "more groups": "import os\nos.setgroups([1000])\nprint('ESCAPED')",
    "a signal to the init process": "import os\nos.kill(1, 9)\nprint('ESCAPED')",
    "a signal to another user's": "import os\nos.kill(2, 0)\nprint('ESCAPED')",
    "a trace of another user's": CTYPES
    + "print('ESCAPED' if call(101, 117, 0x4206, 2, 0, 0) == 0 else '')",
    "the memory of another user's": CTYPES
    + "print('ESCAPED' if call(310, 270, 2, None, 0, None, 0, 0) == 0 else '')",
    "capabilities of a file": "import os\nopen('f', 'w').close()\nos.setxattr('f', 'security.capability', bytes.fromhex('0100000200202000' + '00' * 12))\n"
    "print('ESCAPED')",
    "capabilities again": CTYPES
    + "import struct\nprint('ESCAPED' if call(126, 91, struct.pack('Ii', 0x20080522, 0), struct.pack('6I', 1 << 21 | 11, "
    "1 << 21 | 11, 0, 1, 1, 0)) == 0 else '')",
    "a user space of its own": CTYPES + "print('ESCAPED' if libc.unshare(0x10000000) == 0 else '')",
    "a device": "import os, stat\nos.mknod('d', stat.S_IFCHR | 0o666, os.makedev(1, 1))\nprint('ESCAPED')",
    "the name of the machine": "import socket\nsocket.sethostname('escaped')\nprint('ESCAPED')",
    "more processes": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (1000, 1000))\nprint('ESCAPED')",
}
BY_AGENT = {
    "/etc/passwd": "open('/etc/passwd', 'a')\nprint('ESCAPED')",
    "another /etc/passwd": "import os\nopen('p', 'w').close()\nos.rename('p', '/etc/passwd')\nprint('ESCAPED')",
    "a link to root's files": "import os\nos.link('/etc/passwd', 'l')\nprint('ESCAPED')",
    "another /tmp": "import os\nos.rename('/tmp', '/work/t')\nprint('ESCAPED')",
    "another's file in /tmp": "import os\nos.unlink('/tmp/roots')\nprint('ESCAPED')",
    "what root keeps": "print('ESCAPED' if open('/home/root/kept').read() else '')",
    "what root left in /tmp": "print('ESCAPED' if open('/tmp/roots').read() else '')",
    "root": "import os\nos.setresuid(0, 0, 0)\nprint('ESCAPED')",
    "an owner": "import os\nopen('mine', 'w').close()\nos.chown('mine', 0, 0)\nprint('ESCAPED')",
    "a program of root's that makes root": "import subprocess\nprint('ESCAPED' if b'euid=0' in subprocess.run(['/tmp/id'], capture_output=True).stdout else '')",
}


@pytest.fixture
def sandbox():
    need_tier("namespaces")
    if os.geteuid() != 0:
        pytest.skip("users of a sandbox's own need root outside")
    with open_sandbox(SETTINGS, users=True) as opened:
        yield opened


def test_a_user_that_root_makes_is_another_one(sandbox):
    assert (
        sandbox.start(["whoami"]).out == b"agent\n"
        and sandbox.start(["whoami"], user="root").out == b"root\n"
    )
    with as_user(sandbox, "other") as other:
        assert other.run(
            "import os; os.getresuid(), os.getresgid(), os.getgroups(), os.environ['HOME']"
        ).text == ("((1001, 1001, 1001), (1001, 1001, 1001), [], '/home/other')\n")
    assert sandbox.start(["whoami"], user="other").out == b"other\n"
    assert (
        b"the sandbox has no user" in sandbox.start(["id"], user="nobody").said.encode()
        and sandbox.start(["id"], user="").error == "raised"
    )


def test_files_of_one_are_not_writable_by_the_other(sandbox):
    with as_user(sandbox, "other"):
        pass
    for writer, place, stranger in (
        (None, "/work/f", "other"),
        ("other", "/home/other/f", None),
        ("root", "/tmp/f", "other"),
    ):
        assert (
            sandbox.start(
                ["sh", "-c", f"echo 1 > {place} && chmod 644 {place}"], user=writer
            ).status
            == 0
        )
        for way in (f"echo 2 >> {place}", f"rm -f {place}", f"chmod 666 {place}"):
            assert sandbox.start(["sh", "-c", way], user=stranger).status != 0, (place, way)
        assert (
            sandbox.start(["sh", "-c", f"cat {place} && echo 2 >> {place}"], user=writer).out
            == b"1\n"
        )  # negative control


@pytest.mark.parametrize("user", ["root", "other"])
def test_what_a_user_of_a_sandbox_tries_stays_in_the_sandbox(sandbox, user):
    assert sandbox.start(["sh", "-c", "sleep 60 & echo"]).status == 0  # somebody to signal
    with as_user(sandbox, user) as runner:
        runner.run("import os; os.chdir(os.environ['HOME'])")
        said = {name: runner.run(program) for name, program in BY_ROOT.items()}
        assert (
            runner.run(
                "open('own', 'w').close(); os.chmod('own', 0o640); os.stat('own').st_uid"
            ).text
            == f"{0 if user == 'root' else 1001}\n"
        )
    assert not [
        name
        for name, ran in said.items()
        if "ESCAPED" in ran.text.splitlines() or ran.lost or "SyntaxError" in ran.said
    ]
    assert os.stat("/dev/null").st_mode & 0o777 == 0o666 and os.stat("/dev/null").st_uid == 0


def test_negative_control_the_root_of_a_sandbox_may_what_is_its_own(sandbox):
    with as_user(sandbox, "root") as root:
        assert (
            root.run(
                "import os\nopen('/etc/new', 'w').close(); os.chown('/etc/new', 1001, 7); os.chmod('/etc/new', 0o4711)\n"
                "s = os.stat('/etc/new'); s.st_uid, s.st_gid, oct(s.st_mode & 0o7777)"
            ).text
            == "(1001, 7, '0o4711')\n"
        )
        assert (
            root.run(
                "os.mkdir('/work/theirs', 0o700); os.chown('/work/theirs', 1001, 1001); os.listdir('/work/theirs')"
            ).text
            == "[]\n"
        )


def test_the_agents_code_reaches_nothing_of_roots(sandbox):
    with as_user(sandbox, "root") as root:
        assert root.run(SETUID).text == "3072\n"  # both bits are there, and do nothing
        assert not root.run(
            "open('/home/root/kept', 'w').write('x'); open('/tmp/roots', 'w').write('x')"
        ).error
        assert root.run("open('/tmp/roots').read()").text == "'x'\n"
    for user in (None, "other"):
        with as_user(sandbox, user) as runner:
            said = {name: runner.run(program) for name, program in BY_AGENT.items()}
        assert not [name for name, ran in said.items() if "ESCAPED" in ran.text.splitlines()]


@pytest.mark.parametrize(
    "trick",
    [
        "os.symlink('/work/p', '/etc/passwd')",
        "os.mkdir('/etc/passwd')",
        "None",
        "passwd('x:x:4096:1::/:/bin/sh')",
        "passwd('x:x:1:4096::/:/bin/sh')",
        "passwd('x:x:-1:0::/:/bin/sh')",
        "passwd('x:x:4294967295:0::/:/bin/sh')",
        "passwd('x:x:4294967296:0::/:/bin/sh')",
        "passwd('x:x:' + '9' * 5000 + ':0::/:/bin/sh')",
        "passwd('x:x:1:1::/\\0:/bin/sh')",
        "passwd('x:x:0')",
        "passwd('#' * (1 << 17) + '\\nx:x:0:0::/:/bin/sh')",
    ],
)
def test_a_passwd_that_leads_astray_makes_nobody(sandbox, trick):
    sandbox.write_file("p", b"x:x:0:0::/:/bin/sh\n")
    with as_user(sandbox, "root") as root:
        root.run(
            "import os\ndef passwd(text): open('/etc/passwd', 'w').write(text + '\\n')\nos.unlink('/etc/passwd')"
        )
        assert not root.run(trick).error
    began = time.monotonic()
    assert sandbox.start(["id"], user="x").error == "raised" and time.monotonic() - began < 5
    assert sandbox.start(["id", "-u"]).out == b"1000\n"  # and the sandbox goes on


def test_negative_control_a_passwd_in_order_does(sandbox):
    with as_user(sandbox, "root") as root:
        root.run(
            "open('/etc/passwd', 'w').write('x:x:0:0::/home:/bin/sh\\ny:x:4095:4095::/:/bin/sh\\n')"
        )
    assert (
        sandbox.start(["id", "-u"], user="x").out == b"0\n"
        and sandbox.start(["id", "-u"], user="y").out == b"4095\n"
    )


def test_processes_are_bounded_for_all_users_together(sandbox):
    bomb = ["sh", "-c", "for n in 1 2 3 4 5 6; do sleep 60 & done; echo"]
    with as_user(sandbox, "other"):
        pass
    for user in (None, "root", "other"):
        sandbox.start(bomb, user=user)
    running = [status for status in statuses_of(sandbox.host.pool) if status["Name"] in BEHIND]
    assert 6 <= len(running) <= SETTINGS.processes


def statuses_of(pool):
    """Of all processes of its sandboxes, but for those that end meanwhile."""
    found, new = [], [pool.process_id]
    while new:
        pid = new.pop()
        with suppress(OSError):
            found.append(
                dict(
                    line.split(":\t", 1)
                    for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                    if ":\t" in line
                )
            )
            new += children_of(pid)
    return found


def test_as_the_machine_sees_them_they_are_nobody():
    """Numbers of no user, no more capabilities than three, no new privileges, a list of calls."""
    need_tier("namespaces")
    if os.geteuid() != 0:
        pytest.skip("users of a sandbox's own need root outside")
    pool, seen = SandboxPool(), {}
    with (
        open_sandbox(SETTINGS, pool, users=True) as first,
        open_sandbox(SETTINGS, pool, users=True) as second,
    ):
        for sandbox in (first, second):
            with as_user(sandbox, "other"):
                pass
            for user in (None, "root", "other"):
                sandbox.start(["sh", "-c", "sleep 60 &"], user=user)
        for status in statuses_of(pool):
            if status["Name"] in BEHIND:
                number = int(status["Uid"].split()[0])
                assert {status["Uid"], status["Gid"]} == {"\t".join([str(number)] * 4)} and status[
                    "Groups"
                ].strip() == ""
                seen[number] = (
                    status["CapEff"],
                    status["CapBnd"],
                    status["NoNewPrivs"],
                    status["Seccomp"],
                )
    pool.shutdown()
    assert len(seen) == 6  # three in each sandbox, and no number of one is the other's
    taken = {each.pw_uid for each in pwd.getpwall()}
    for number, (able, bound, no_new, listed) in seen.items():
        assert number >= users.FIRST and number not in taken and (no_new, listed) == ("1", "2")
        assert int(able, 16) == int(bound, 16) == (0b1011 if number % users.COUNT == 0 else 0)


# ------------------------------------------------------------------------------------------------ where there are none


def test_without_root_outside_it_is_refused_in_words():
    need_tier("namespaces")
    pool = pool_for("nobody")
    if isinstance(pool, str) or pool.why_not("namespaces"):
        pytest.skip("no pool for nobody")
    with pytest.raises(ToolError, match="only root can give one: this is not root"):
        open_sandbox(SETTINGS, pool, users=True)
    with open_sandbox(SETTINGS, pool) as sandbox:
        assert (
            "needs a sandbox with users of its own: open_sandbox"
            in sandbox.start(["id"], user="root").said
        )
        assert sandbox.start(["id", "-u"]).out == b"1000\n"


def test_numbers_that_are_somebodys_are_not_given(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    mapped = [[0, 0, 4294967295]]
    monkeypatch.setattr(
        users, "read_numbers", lambda path, between: mapped if "_map" in path else []
    )
    assert users.first_number() % users.COUNT == 0
    with monkeypatch.context() as patch:
        patch.setattr(
            pwd,
            "getpwall",
            lambda: [
                SimpleNamespace(
                    pw_uid=users.FIRST + os.getpid() % users.SANDBOXES * users.COUNT + 7
                )
            ],
        )
        with pytest.raises(OSError, match="that are somebody's"):
            users.first_number()
    with monkeypatch.context() as patch:
        patch.setattr(
            users,
            "read_numbers",
            lambda path, between: mapped if "_map" in path else [[0, users.FIRST, 1 << 28]],
        )
        with pytest.raises(OSError, match="that are somebody's"):
            users.first_number()
    mapped[0][2] = 65536
    with pytest.raises(OSError, match="there are none here"):
        users.first_number()


def test_a_sandbox_with_users_starts_programs_and_is_not_forked(sandbox):
    with pytest.raises(ConfigError, match="needs SandboxSettings\\(programs=True\\)"):
        open_sandbox(SandboxSettings(), users=True)
    with pytest.raises(ToolError, match="a sandbox with users of its own cannot be forked"):
        sandbox.fork()
