"""One word per thing: names of public classes are made of words that docs/glossary.md holds, and occur once.

Names from before the glossary are listed here. The lists may only become shorter: a name that is gone must be struck
out, and a new one is not added but renamed, or its word is put into the glossary for a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs/glossary.md"
WORDS_OF_A_NAME = re.compile(r"[A-Z]+\d*(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")

# Class names with a word that the glossary does not hold. May only become shorter.
OLD_NAMES: frozenset[str] = frozenset(
    """
Alike BadCall Clipped Credited Damaged
Explained Fixed FoundGrid Imported Knob Linted LintedSession MaskDamage Measured
Retokenized Score Seal Ticked Trainer TurnTwice
Whole
""".split()
)

# Class name -> in how many modules it is defined. Numbers may only fall, and a name that is down to one goes.
REPEATED: Mapping[str, int] = {}


def public_classes(package: Path) -> dict[str, list[str]]:
    """{class name: modules that define it} for every public class at the top of a module."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(package.parent)))
    return found


def known_words(glossary: str) -> set[str]:
    """Words of the first column of every table, and those of the block after <!-- words --> without its headings."""
    words: set[str] = set()
    for line in glossary.splitlines():
        if line.startswith("| ") and not line.startswith(("| word ", "| ---")):
            words |= set(re.findall(r"[a-z]+\d*", line.split(" | ")[0].lower()))
    block = re.search(r"<!-- words -->\n```text\n(.*?)```", glossary, re.DOTALL)
    if block is None:
        raise ValueError("the glossary has no block of words after <!-- words -->")
    for line in block[1].splitlines():
        words |= set(re.findall(r"[a-z]+\d*", line[17:]))
    return words


def unknown_words(name: str, words: set[str]) -> list[str]:
    """The words of a class name that are not known, plural forms of known words aside.

    An acronym in mixed case is one word although it is cut in two: Gi and GPO are gigpo.
    """
    found: list[str] = []
    for word in (word.lower() for word in WORDS_OF_A_NAME.findall(name)):
        if found and found[-1] + word in words:
            found[-1] += word
        else:
            found.append(word)
    return [word for word in found if word not in words and word.removesuffix("s") not in words]


def word_faults(names: set[str], words: set[str], old: frozenset[str]) -> list[str]:
    """One sentence for each new name outside the vocabulary, and each listed name that is no longer one."""
    outside = {name: unknown for name in names if (unknown := unknown_words(name, words))}
    return [
        *(
            f"{name}: {', '.join(unknown)} is in no glossary; use a word of docs/glossary.md, or add it there"
            for name, unknown in sorted(outside.items())
            if name not in old
        ),
        *(
            f"{name} is a name of the vocabulary now, or gone: strike it from OLD_NAMES"
            for name in sorted(old - outside.keys())
        ),
    ]


def repeat_faults(found: Mapping[str, list[str]], allowed: Mapping[str, int]) -> list[str]:
    """One sentence for each name that is defined more often than allowed, and each allowance that is not used up."""
    return [
        *(
            f"{name} is defined in {', '.join(places)}: one name for one thing"
            for name, places in sorted(found.items())
            if len(places) > allowed.get(name, 1)
        ),
        *(
            f"{name} occurs {len(found.get(name, ()))} times now: lower REPEATED[{name!r}] = {number}, or strike it out"
            for name, number in sorted(allowed.items())
            if len(found.get(name, ())) < number
        ),
    ]


def test_every_word_of_a_public_class_name_is_in_the_glossary():
    faults = word_faults(
        set(public_classes(ROOT / "workbench")), known_words(GLOSSARY.read_text()), OLD_NAMES
    )
    assert not faults, "\n".join(faults)


def test_a_public_class_name_occurs_once():
    assert not (faults := repeat_faults(public_classes(ROOT / "workbench"), REPEATED)), "\n".join(
        faults
    )
    assert all(number > 1 for number in REPEATED.values())


def test_negative_controls():
    words = known_words(
        "| word | means |\n|---|---|\n| micro-batch | x |\n"
        "<!-- words -->\n```text\nplain words      error bm25\n```"
    )
    assert words == {"micro", "batch", "error", "bm25"}
    assert unknown_words("MicroBatchErrors", words) == [] and unknown_words("Bm25", words) == []
    assert unknown_words("BmError", {"bmerror"}) == [] and unknown_words(
        "StarPO_S", {"starpo"}
    ) == ["s"]
    assert unknown_words("EarOfTheBatch", words) == ["ear", "of", "the"]
    assert unknown_words("GRPOBatch", words) == ["grpo"]
    assert "ear is in no glossary" in word_faults({"Ear"}, words, frozenset())[0]
    assert "strike it" in word_faults({"Batch"}, words, frozenset({"Batch"}))[0]
    assert word_faults({"Ear", "Batch"}, words, frozenset({"Ear"})) == []
    twice = {"Piece": ["a.py", "b.py"], "Batch": ["c.py"]}
    assert "a.py, b.py" in repeat_faults(twice, {})[0] and repeat_faults(twice, {"Piece": 2}) == []
    assert "lower REPEATED['Piece'] = 3" in repeat_faults(twice, {"Piece": 3})[0]


if __name__ == "__main__":  # python -m tests.test_glossary: both lists as they are now
    found, words = public_classes(ROOT / "workbench"), known_words(GLOSSARY.read_text())
    print("OLD_NAMES:", *sorted(name for name in found if unknown_words(name, words)))
    print(
        "REPEATED:",
        {name: len(places) for name, places in sorted(found.items()) if len(places) > 1},
    )
