"""The code that a run names: where it came from, and whether it may run here (invariants 16 and 17).

    code.json    of a run that names code of the user's own: for each setting the name, version and source checksum, and
                 a seal over them and over the whole configuration, made with the secret key of this user on this machine

A run folder is data: the names in it import code only if its seal was made with this very key, or if whoever opens the
run trusts it (`open_run(path, trust=True)`, `--trust`). So neither a run from elsewhere nor one that was edited runs
anything. The package's own names are always fine.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.basics import canonical_json
from workbench.basics.plugins import Origin, origin_of
from workbench.run.store import CODE, Run
from workbench.run.writer import make_folder
from workbench.values.errors import StoreError

FORMAT = 1
# How what may name code begins: module:name, module:name(argument). Not http://host, not host:8000, not "a: b".
_NAMES = re.compile(r"[^\W\d][\w.]*:[^\W\d]")
# Names in the package itself that import nothing their argument names; any other one of it might.
_OWN = re.compile(
    r"workbench\.(engines|extensions\.servers)\.encoder:encoder(\(.*\))?"
    r"|workbench\.(envs\.tools|tools)\.calculator:calculator",
    re.DOTALL,
)
FREE = "policy.template_flags"  # text for a template, which is no code


def named_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Dotted setting -> the code that it names, of a configuration as it is stored."""
    texts = _texts(config, "")
    return {key: text for key, text in texts if _NAMES.match(text) and not _OWN.fullmatch(text)}


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """(dotted setting, its value) of every setting that is a text."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping) and key != FREE:
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{key}[{number}]")


# ------------------------------------------------------------------------------------------------ where it came from


def origins_now(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Dotted setting -> name, version and source checksum of the code that it names, as it is here and now."""
    origins = {}
    for key, text in named_code(config).items():
        name, _, _ = text.partition("(")
        origins[key] = asdict(origin_of(None, name))
    return origins


def origins_of(run: Run) -> dict[str, dict[str, str]]:
    """The same as it was when the run last began or was resumed; empty where the run does not say."""
    stored = _stored(run) or {}
    origins = dict(stored.get("origins", {}))
    for event in run.events():
        if event.get("kind") == "code":
            origins |= event["origins"]
    return origins


def changed_code(run: Run, *, without: Collection[str] = ()) -> list[str]:
    """In words, which code is not that which the run was made with. Only for a run whose code may run: it is looked up.
    `without`: parts of the configuration that are left out."""
    before = origins_of(run)
    changed = []
    for key, origin in origins_now(run.config).items():
        part, _, _ = key.partition(".")
        if key not in before or part in without:
            continue
        old = Origin(**before[key])
        new = Origin(**origin)
        if old != new:
            difference = _difference(old, new)
            changed.append(
                f"{new.name} ({key}) is not the code that the run was made with: {difference}"
            )
    return changed


def _difference(before: Origin, now: Origin) -> str:
    parts = []
    if before.version != now.version:
        parts.append(f"version {before.version or 'none'}, now {now.version or 'none'}")
    if before.source != now.source:
        old = before.source[:12] or "none"
        new = now.source[:12] or "none (not found)"
        parts.append(f"source checksum {old}, now {new}")
    return ", ".join(parts) or f"{before.name}, now {now.name}"


# ------------------------------------------------------------------------------------------------ may it run here


def code_file(config: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """(content of code.json for a run that begins with `config`, None where it names no code; a warning, or "")."""
    if not named_code(config):
        return None, ""
    origins = origins_now(config)
    key, reason = _key(make=True)
    seal = None
    warning = ""
    if key is None:
        warning = (
            f"this run cannot be told from one made elsewhere ({reason}): later it needs --trust"
        )
    else:
        seal = _seal(key, canonical_json.plain(config, "config"), origins)
    content = {"origins": origins, "seal": seal}
    return canonical_json.sealed_json(content, kind="code", version=FORMAT), warning


def why_foreign(run: Run) -> str:
    """Why the code that a run names is not run here; "" where it names none, or may."""
    named = named_code(run.config)
    if not named or run.trust:
        return ""
    reason = _distrust(run, named)
    if not reason:
        return ""
    settings = ", ".join(f"{key} = {text}" for key, text in named.items())
    return (
        f"it names {settings}, and {reason}. If you trust that code: --trust, or "
        "wb.open_run(path, trust=True)"
    )


def _distrust(run: Run, named: Mapping[str, str]) -> str:
    """Why it is not known that this user made the run on this machine, and nobody edited it; "" where it is."""
    stored = _stored(run)
    if stored is None:
        return "nothing says that it was made on this machine"
    key, reason = _key(make=False)
    if key is None:
        return reason
    seal = _seal(key, run.first_config, stored["origins"])
    if not stored.get("seal") or not hmac.compare_digest(str(stored["seal"]), seal):
        return "it was not made by this user on this machine, or was edited since"
    first = run.first_config
    unchanged = all(run.config.get(part) == first.get(part) for part in ("env", "algorithm"))
    if not unchanged or named != named_code(first):
        return "its settings were changed since"
    return ""


def _stored(run: Run) -> dict[str, Any] | None:
    """The content of code.json; None where the run has none."""
    path = run.path / CODE
    if not path.exists():
        return None
    return canonical_json.read_sealed_json(path, kind="code", version=FORMAT, below=run.path)


def _seal(key: bytes, config: Any, origins: Any) -> str:
    content = {"config": config, "origins": origins}
    return hmac.new(key, canonical_json.json_bytes(content, "code"), "sha256").hexdigest()


def _key(*, make: bool) -> tuple[bytes | None, str]:
    """(this user's key on this machine, why there is none). It never leaves its file."""
    try:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        path = Path(home) / "agent-rl-workbench" / "key"
        if make and not path.exists():
            make_folder(path.parent)
            _write_key(path)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            return None, f"others may read {path}; chmod 600 it, if nobody did"
        key = path.read_bytes()
        if len(key) != 32:
            return None, f"{path} holds no key"
        return key, ""
    except FileNotFoundError:
        return None, "this user has made no run of such code on this machine"
    except (OSError, RuntimeError, StoreError) as error:
        return None, f"no key of this user can be kept: {str(error).partition(';')[0]}"


def _write_key(path: Path) -> None:
    """Whole from its first moment, readable by its owner alone; the first of two processes wins."""
    temporary = path.with_name(f"key-{secrets.token_hex(4)}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
