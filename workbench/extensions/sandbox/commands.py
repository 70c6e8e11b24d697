"""Sandboxes that a program of the machine shuts in: bubblewrap, Docker, Apptainer. `COMMANDS` is all that differs.

The program starts an interpreter with the modules of this folder in /box and nothing else of the user's; that shuts itself
in further, as a sandbox of tier `landlock` does (bounds, a list of calls, no privileges, no children), before it runs anybody's
code. It speaks over its standard input and output, since no other descriptor reaches a container. /work is a disk of its
own. What it cannot do: forks, and programs of the machine.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Of an interpreter that sandboxes are begun by; it begins once more where addresses of objects would be random.
START = """
import os, sys, types
folder, again = sys.argv[1], os.environ.pop("AGAIN", "")
for name, path in (("workbench", "."), ("workbench.extensions", "extensions"), ("workbench.extensions.sandbox", "extensions/sandbox")):
    sys.modules[name] = types.ModuleType(name)  # so that no module of the package but those of the sandboxes is imported
    sys.modules[name].__path__ = [os.path.join(folder, path)]
if not again:
    from workbench.extensions.sandbox import calls
    try:
        calls.fix_addresses()
        os.environ["AGAIN"] = "again"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError:
        os.environ.pop("AGAIN", "")
from workbench.extensions.sandbox import forkserver
forkserver.alone(sys.argv[3]) if sys.argv[2] == "alone" else forkserver.main(int(sys.argv[2]), int(sys.argv[3]))
"""
_INSIDE = ("-S", "-s", "-B", "-P", "-c", START, "/box", "alone", "{order}")
# Of this process, whatever pool a sandbox is of: names of containers are told apart by them.
_NUMBERS = itertools.count()
# Of Docker and Apptainer, which bring an interpreter along: this one's version, out of the usual image.
_IMAGE = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"


@dataclass(frozen=True)
class SandboxCommand:
    """How a program of the machine begins a sandbox.

    install: how the program is installed.
    words: the command, where a word in braces stands for what `command_of` puts there.
    end: ends the sandbox where killing the command does not.
    makes_disk: /work is made inside, which takes a privilege that is given up afterwards.
    """

    program: str
    install: str
    words: tuple[str, ...]
    end: tuple[str, ...] = ()
    makes_disk: bool = False


COMMANDS: Mapping[str, SandboxCommand] = {
    "bubblewrap": SandboxCommand(
        "bwrap",
        "Debian: apt-get install bubblewrap",
        (
            "{spaces}",
            "--unshare-ipc",
            "--unshare-pid",
            "--unshare-net",
            "--unshare-uts",
            "--unshare-cgroup-try",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
            "--setenv",
            "PYTHONHASHSEED",
            "0",
            "--setenv",
            "LANG",
            "C.UTF-8",
            "{library}",
            "--ro-bind",
            "{folder}",
            "/box/extensions/sandbox",
            "--dev-bind",
            "/dev/null",
            "/dev/null",
            "--dir",
            "/work",
            "--remount-ro",
            "/",
            "--cap-add",
            "CAP_SYS_ADMIN",
            "--cap-add",
            "CAP_SETUID",
            "--cap-add",
            "CAP_SETGID",
            "--",
            "{python}",
            *_INSIDE,
        ),
        makes_disk=True,
    ),
    "docker": SandboxCommand(
        "docker",
        "https://docs.docker.com/engine/install",
        (
            "run",
            "--interactive",
            "--rm",
            "--pull",
            "never",
            "--name",
            "{name}",
            "--network",
            "none",
            "--ipc",
            "none",
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
            "--user",
            "65432:65432",
            "--pids-limit",
            "16",
            "--memory",
            "{memory_mb}m",
            "--tmpfs",
            "/work:size={disk_mb}m,nr_inodes=2048,mode=0700,uid=65432,gid=65432",
            "--volume",
            "{folder}:/box/extensions/sandbox:ro",
            "--env",
            "PYTHONHASHSEED=0",
            _IMAGE,
            "python",
            *_INSIDE,
        ),
        end=("kill", "{name}"),
    ),
    "apptainer": SandboxCommand(
        "apptainer",
        "https://apptainer.org/docs/admin/main/installation.html",
        (
            "exec",
            "--containall",
            "--cleanenv",
            "--no-home",
            "--net",
            "--network",
            "none",
            "--drop-caps",
            "all",
            "--scratch",
            "/work",
            "--bind",
            "{folder}:/box/extensions/sandbox:ro",
            "--env",
            "PYTHONHASHSEED=0",
            f"docker://{_IMAGE}",
            "python",
            *_INSIDE,
        ),
    ),
}


def why_not_installed(tier: str) -> str:
    """ "" where the program of this tier is on the path."""
    command = COMMANDS[tier]
    if shutil.which(command.program):
        return ""
    return f"{command.program} is not installed here ({command.install})"


def command_of(order: Mapping[str, Any], python: str, as_root: bool) -> dict[str, list[str]]:
    """{"command", "end"} of a sandbox, for whoever starts it. `python`: the interpreter in it, where it is one of this machine."""
    tier = COMMANDS[order["tier"]]
    limits = order["limits"]
    program = shutil.which(tier.program) or tier.program
    inside = {
        "tier": order["tier"],
        "limits": limits,
        "seed": order["seed"],
        "disk": tier.makes_disk,
    }
    given = {
        "name": f"workbench-box-{os.getpid()}-{next(_NUMBERS)}",
        "folder": str(Path(__file__).parent),
        "python": os.path.realpath(python),
        "order": json.dumps(inside),
        "memory_mb": 2 * limits["memory_mb"],
        "disk_mb": limits["disk_mb"],
    }
    # Root mounts as root, and is nobody inside; anybody else needs a user space for it.
    several = {
        "{spaces}": [] if as_root else ["--unshare-user", "--uid", "1000", "--gid", "1000"],
        "{library}": _library(given["python"]),
    }
    command = [program]
    for word in tier.words:
        command += several.get(word, [_filled(word, given)])
    end = [program, *(_filled(word, given) for word in tier.end)] if tier.end else []
    return {"command": command, "end": end}


def _filled(word: str, given: Mapping[str, Any]) -> str:
    for name, value in given.items() if word != START else ():
        word = word.replace(f"{{{name}}}", str(value))
    return word


def _library(python: str) -> list[str]:
    """What an interpreter needs to read, as bubblewrap takes it: in folders that whoever root becomes may enter, too."""
    own = (python, str(Path(python).parents[1] / "lib"))
    above: dict[str, None] = {}
    for path in own:
        above |= dict.fromkeys(map(str, reversed(Path(path).parents[:-1])))
    words = []
    for folder in above:
        words += ["--perms", "0755", "--dir", folder]
    for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", *own):
        words += ["--ro-bind-try", path, path]
    return words
