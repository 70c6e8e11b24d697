"""A wheel carries the shipped policies along: `data/policies` of the checkout becomes `workbench/data/policies`.

Everything else about the package stands in pyproject.toml. An editable install copies nothing: there the policies are
found where they lie (workbench/basics/shipped.py).
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

POLICIES = Path(__file__).parent / "data" / "policies"


class BuildWithPolicies(build_py):
    """Copies the modules, then the policies."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        copied = Path(self.build_lib) / "workbench" / "data" / "policies"
        shutil.rmtree(copied, ignore_errors=True)  # an earlier build may have left one that is gone
        shutil.copytree(POLICIES, copied)


setup(cmdclass={"build_py": BuildWithPolicies})
