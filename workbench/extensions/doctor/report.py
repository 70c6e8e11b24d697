"""What the examination found: facts, each with what to do about it. Shows itself as text, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

AREAS = ("Python", "Packages", "Devices and processes", "Engines", "Sandboxes", "Machine")


@dataclass(frozen=True)
class MachineFact:
    """One fact. `state`: "ok" | "absent" (an optional part that is not there) | "warning" | "broken"."""

    area: str  # one of AREAS
    name: str
    state: str
    fact: str
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """All findings. `ok`: all that the workbench needs works, and nothing that is installed is unsafe or broken."""

    findings: tuple[MachineFact, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.state == "broken" for finding in self.findings)

    @property
    def text(self) -> str:
        lines = []
        area = None
        for finding in self.findings:
            if finding.area != area:
                area = finding.area
                lines += ["", area] if lines else [area]
            state = finding.state if finding.state in ("ok", "absent") else finding.state.upper()
            lines.append(f"  {state:8} {finding.name:22} {finding.fact}")
            if finding.advice and finding.state != "ok":
                lines.append(f"  {'':8} {'':22} -> {finding.advice}")
        verdict = "Ready." if self.ok else f"Not ready: {self._count('broken')} broken."
        counts = (
            f"{self._count('warning')} warnings, {self._count('absent')} optional parts absent."
        )
        return "\n".join([*lines, "", f"{verdict} {counts}"])

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def _count(self, state: str) -> int:
        return sum(finding.state == state for finding in self.findings)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__  # the last line of a notebook cell shows it
