"""Words that no command can do anything with, drawn from the parser itself: every command, each with every argument.

words = bad_call(17, folder)        the same number is the same call; `folder` holds the files that BAD names
"""

from __future__ import annotations

import argparse
import os
import random
import socket
from pathlib import Path

from workbench.cli.parser import make_parser

FILES: dict[str, bytes] = {
    "deep.toml": b"x = " + b"[" * 5_000 + b"]" * 5_000,
    "long.toml": b"x = " + b"1" * 5_000,
    "binary.toml": bytes(range(256)),
    "wrong.toml": b"[train]\nsteps = 'x'\n",
    "other.toml": b"[[train]]\n",
    "deep.json": b"[" * 100_000 + b"]" * 100_000,
    "list.json": b"[]",
    "null.json": b"null",
    "empty.json": b"",
    "cut.json": b'{"kind": "config", "format": 1',
    "config.json": b'{"kind": "config", "format": 1, "sha256": "", "content": {}}',
    "lines.jsonl": b'{"a": 1}\nx\n\0\0\n',
    "long.jsonl": b'{"messages": "' + b"x" * 1_000_000,
    "rows.parquet": b"PAR1" + b"\0" * 50 + b"PAR1",
    "model.safetensors": b"\xff" * 64,
    "book.ipynb": b'{"cells": 3}',
    "null.ipynb": b"null",
    "script.py": b"raise SystemExit(3)\n",
    "bom.toml": b"\xef\xbb\xbfx = 1\n",
    "utf16.json": '{"a": 1}'.encode("utf-16"),
}
WORDS = (
    "",
    " ",
    ".",
    "..",
    "/",
    "/dev/null/nowhere",  # nobody can make it, not even root
    "~",
    "*",
    "x" * 300,
    "x" * 5_000,
    "a/" * 3_000,
    "\x1b[31m\u202e",
    "\udc80\udcff",
    "é",
    "-1",
    "0",
    "1e999",
    "nan",
    "-inf",
    "\u0661",
    "1" * 6_000,
    "0x10",
    "1_0",
    "1-",
    "{}",
    "[]",
    "None",
    "=",
    "a=b",
    "=1",
    "os:system",
    "no_such_module:x",
    "workbench:train",
    ":",
    "x:",
    "http://[",
    "http://127.0.0.1:1",
    "file:///etc/passwd",
    "/dev/zero",
    "/dev/null",
    "/dev/stdin",
    "/proc/self/mem",
    "/proc/self/fd/0",
    "/etc",
    "loop",
    "pipe.toml",
    "socket.json",
    "folder",
    "folder.toml",
    "run",
    *FILES,
)
SETTINGS = (
    "train.steps=",
    "train.steps=x",
    "train.steps=-1",
    "train.steps=1e400",
    "train=1",
    "train.no_such=1",
    "=",
    "x",
    "",
    "policy.name=\x1b",
    "env.kind=os:system",
    "env.kind=3",
    "env.tools=[1]",
    "env.tools={",
    "algorithm.kind=../..",
    "learner.lr=nan",
    "train.steps=" + "1" * 6_000,
    "env.size=" + "[" * 3_000,
    "engine.kind=[]",
    "policy.loader=os:system",
    "train.steps=3 train.seed=1",
    "\udc80=1",
    "collect.max_turn_tokens=99999999999999999999999",
)
HARMLESS = (
    "",
    " ",
    "x" * 300,
    "x" * 5_000,
    "\x1b[31m",
    "list.json",
    "pipe.toml",
    "loop",
    "folder",
    "/dev/full",
    "/proc/x",
    "a\nb",
)
WRITTEN = ("out", "folder", "html", "json", "index")  # where a command writes: nowhere that matters
# Of commands without a positional argument: what must be wrong, for the call to be a bad one.
DECIDES = {
    "demo": ("--task",),
    "bias": ("--algorithm",),
    "doctor": ("--plan",),
    "retriever": ("--corpus",),
}
NOT_CALLED = {"serve"}  # without vLLM it says so, whatever it is asked


def lay_out(folder: Path) -> None:
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    (folder / "folder.toml").mkdir()
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_bytes(b"{}")
    os.mkfifo(folder / "pipe.toml")
    here = os.getcwd()
    os.chdir(folder)  # a socket's path is at most 108 characters
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket.json")
    os.chdir(here)


def commands() -> dict[str, argparse.ArgumentParser]:
    parser = make_parser()
    [choices] = [
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    for sub in choices.values():
        sub.complete()
    return {name: sub for name, sub in choices.items() if name not in NOT_CALLED}


def bad_call(number: int) -> list[str]:
    """One command after the other, each with other words."""
    known = commands()
    name, rng = [*known][number % len(known)], random.Random(f"bad call {number}")
    positional, optional = [], []
    for action in known[name]._actions:
        if action.dest == "help":
            continue
        if action.option_strings:
            optional.append(action)
        else:
            positional += [_word(action, rng)] * (rng.random() > 0.03)
    words: list[str] = []
    for action in rng.sample(optional, rng.randrange(min(3, len(optional)) + 1)):
        words += _option(action, rng)
    if name in DECIDES:
        words += [
            rng.choice(DECIDES[name]),
            rng.choice([each for each in WORDS if each and not each.startswith("-")]),
        ]
    if rng.random() < 0.1:
        words.insert(
            rng.randrange(len(words) + 1),
            rng.choice(("--no-such", "-z", "--", "--set", "---", "surplus")),
        )
    both = [*positional, *words] if rng.random() < 0.8 else [*words, *positional]
    return [name, *both]


def _option(action: argparse.Action, rng: random.Random) -> list[str]:
    flag = action.option_strings[0]
    if action.nargs == 0:
        return [flag]
    return [
        flag,
        *(
            _word(action, rng)
            for _ in range(rng.choice((1, 1, 1, 2)) if action.nargs == "+" else 1)
        ),
    ]


def _word(action: argparse.Action, rng: random.Random) -> str:
    if action.dest == "settings":
        return rng.choice(SETTINGS)
    return rng.choice(HARMLESS if action.dest in WRITTEN else WORDS)
