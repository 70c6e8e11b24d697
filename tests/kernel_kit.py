"""For tests of what a C++ kernel does: a marker, and a folder in which it is compiled once for a module's tests."""

from __future__ import annotations

import os
import shutil

import pytest

from workbench.extensions.native import kernel

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX") or "g++") is None, reason="no C++ compiler"
)


@pytest.fixture(scope="module", autouse=True)
def own_folder(tmp_path_factory):
    """The kernel is compiled once for these tests, in a folder of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        kernel.kernel.cache_clear()
        yield
    kernel.kernel.cache_clear()
