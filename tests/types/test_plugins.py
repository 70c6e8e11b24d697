"""Code by name: what is found, what is said of what is not, and where it came from."""

import sys
from hashlib import sha256

import pytest

from workbench.basics.plugins import Origin, is_named, load_named, not_importable, origin_of
from workbench.values.errors import ConfigError


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of somebody's into a folder that is looked in."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path / f"{name}.py"

    return write


def test_it_imports_a_name_and_a_name_inside_it(module):
    module("plug_fine", "class Outer:\n    class Inner: pass\n    made = 3\n")
    assert load_named("plug_fine:Outer", "env.kind").__name__ == "Outer"
    assert load_named("plug_fine:Outer.Inner", "env.kind").__qualname__ == "Outer.Inner"
    assert load_named("plug_fine:Outer.made", "env.kind") == 3


@pytest.mark.parametrize(
    "text, asked, said",
    [
        (
            "",
            "plug_nowhere:Guess",
            r"env.kind 'plug_nowhere:Guess' cannot be imported: there is no module 'plug_nowhere'. Start in "
            r"the folder that has plug_nowhere.py .*PYTHONPATH.*install",
        ),
        (
            "import not_installed_at_all",
            "plug_wrong:Guess",
            "plug_wrong imports 'not_installed_at_all', which is not installed here",
        ),
        (
            "from workbench.types import Task",
            "plug_wrong:Guess",
            "plug_wrong imports 'workbench.types' of an earlier version .* in workbench.values and workbench.basics",
        ),
        (
            "from workbench.envs.base import Env",
            "plug_wrong:Guess",
            "plug_wrong imports 'workbench.envs' of an earlier version .* in workbench.worlds and workbench.tools",
        ),
        ("", "workbench.types:Task", "in workbench.values and workbench.basics now"),
        (
            "1 / 0",
            "plug_wrong:Guess",
            "fails while it is imported: ZeroDivisionError: division by zero",
        ),
        ("def f(:", "plug_wrong:Guess", "fails while it is imported: SyntaxError"),
        (
            "import sys; sys.exit(3)",
            "plug_wrong:Guess",
            "fails while it is imported: SystemExit: 3",
        ),
        (
            "import math; math.nothing",
            "plug_wrong:Guess",
            "fails while it is imported: AttributeError.*nothing",
        ),
        (
            "class Guessing: pass",
            "plug_wrong:Guess",
            r"plug_wrong \(.*plug_wrong.py\) has no 'Guess'; did you mean 'Guessing'",
        ),
        ("", "plug_wrong", "env.kind is package.module:Name"),
        ("", "plug_wrong:", "env.kind is package.module:Name"),
        ("", "../plug:Guess", "env.kind is package.module:Name"),
        ("", "__main__:NotDefinedHere", "was defined in a notebook or script.*Run the cell"),
    ],
)
def test_what_is_not_found_says_what_to_do(module, text, asked, said):
    module("plug_wrong", text)
    with pytest.raises(ConfigError, match=said):
        load_named(asked, "env.kind")


def test_the_origin_names_module_version_and_source(module):
    file = module("plug_origin", "class Guess: pass\nVALUE = Guess()\n")
    guess = load_named("plug_origin:Guess", "env.kind")
    source = sha256(file.read_bytes()).hexdigest()
    assert origin_of(guess) == origin_of(guess()) == Origin("plug_origin:Guess", "", source)
    assert origin_of(guess(), "plug_origin:VALUE") == Origin("plug_origin:VALUE", "", source)
    file.write_text("class Guess: changed = True\n")
    assert origin_of(guess).source not in ("", source)
    assert origin_of(pytest.approx).version == pytest.__version__


def test_what_another_process_cannot_import_is_told():
    class Local:
        pass

    name = origin_of(Local).name
    assert "defined inside a function of" in not_importable(name)
    assert (
        "%%writefile" in not_importable("__main__:Guess") and not_importable("my_env:Guess") == ""
    )


def test_only_a_colon_makes_a_name_that_imports():
    assert is_named("my_env:Guess") and not is_named("frozenlake") and not is_named(None)
