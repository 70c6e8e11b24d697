"""Which code a run names, where it came from, and whether it may run here (laws 16 and 17).

    code.json    of a run that names code of somebody's: for each setting the name, version and source checksum, and a
                 seal over them and over the whole configuration, made with the secret key of this user on this machine

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

from workbench.run.store import CODE, Run
from workbench.run.writer import make_folder
from workbench.types import canonical_json
from workbench.types.errors import StoreError
from workbench.types.plugins import Origin, origin_of

FORMAT = 1
# How what may name code begins: module:name, module:name(argument). Not http://host, not host:8000, not "a: b".
_NAMES = re.compile(r"[^\W\d][\w.]*:[^\W\d]")
# Names in the package itself that import nothing their argument names; any other one of it might.
_OWN = re.compile(
    r"workbench\.engines\.encoder:encoder(\(.*\))?|workbench\.envs\.tools\.calculator:calculator",
    re.DOTALL,
)
FREE = "policy.template_flags"  # text for a template, which is no code


def named_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Dotted setting -> the code that it names, of a configuration as it is stored."""
    return {
        key: text
        for key, text in _texts(config, "")
        if _NAMES.match(text) and not _OWN.fullmatch(text)
    }


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
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
    return {
        key: asdict(origin_of(None, text.partition("(")[0]))
        for key, text in named_code(config).items()
    }


def origins_of(run: Run) -> dict[str, dict[str, str]]:
    """The same as it was when the run last began or went on; empty where the run says nothing of it."""
    found = dict((_stored(run) or {}).get("origins", {}))
    for event in run.events():
        if event.get("kind") == "code":
            found |= event["origins"]
    return found


def changed_code(run: Run, *, without: Collection[str] = ()) -> list[str]:
    """In words, what is not the code that the run was made with. Only for a run whose code may run: it is looked up.
    `without`: parts of the configuration that are not looked at."""
    before, now = origins_of(run), origins_now(run.config)
    both = {
        key: (Origin(**before[key]), Origin(**now[key]))
        for key in now
        if key in before and key.partition(".")[0] not in without
    }
    return [
        f"{new.name} ({key}) is not the code that the run was made with: {_difference(old, new)}"
        for key, (old, new) in both.items()
        if old != new
    ]


def _difference(before: Origin, now: Origin) -> str:
    parts = []
    if before.version != now.version:
        parts.append(f"version {before.version or 'none'}, now {now.version or 'none'}")
    if before.source != now.source:
        parts.append(
            f"source checksum {before.source[:12] or 'none'}, now {now.source[:12] or 'none (not found)'}"
        )
    return ", ".join(parts) or f"{before.name}, now {now.name}"


# ------------------------------------------------------------------------------------------------ may it run here


def code_file(config: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """(content of code.json for a run that begins with `config`; None where it names no code, what is to be said)."""
    if not named_code(config):
        return None, ""
    config, origins = canonical_json.plain(config, "config"), origins_now(config)
    key, reason = _key(make=True)
    content = {"origins": origins, "seal": None if key is None else _seal(key, config, origins)}
    words = (
        f"this run cannot be told from one made elsewhere ({reason}): later it needs --trust"
        if key is None
        else ""
    )
    return canonical_json.sealed_json(content, kind="code", version=FORMAT), words


def why_foreign(run: Run) -> str:
    """Why the code that a run names is not run here; "" where it names none, or may."""
    named = named_code(run.config)
    if not named or run.trust:
        return ""
    stored = _stored(run)
    key, reason = _key(make=False)
    if stored is None:
        reason = "nothing says that it was made on this machine"
    elif (
        key is not None
        and stored.get("seal")
        and hmac.compare_digest(
            str(stored["seal"]), _seal(key, run.first_config, stored["origins"])
        )
    ):
        was = run.first_config
        if named == named_code(was) and all(
            run.config.get(part) == was.get(part) for part in ("env", "algorithm")
        ):
            return ""
        reason = "its settings were changed since"
    elif key is not None:
        reason = "it was not made by this user on this machine, or was edited since"
    return (
        f"it names {', '.join(f'{key} = {text}' for key, text in named.items())}, and {reason}. If you trust that code: "
        "--trust, or wb.open_run(path, trust=True)"
    )


def _stored(run: Run) -> dict[str, Any] | None:
    path = run.path / CODE
    return (
        canonical_json.read_sealed_json(path, kind="code", version=FORMAT, below=run.path)
        if path.exists()
        else None
    )


def _seal(key: bytes, config: Any, origins: Any) -> str:
    return hmac.new(
        key, canonical_json.json_bytes({"config": config, "origins": origins}, "code"), "sha256"
    ).hexdigest()


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
        return (key, "") if len(key) == 32 else (None, f"{path} holds no key")
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
