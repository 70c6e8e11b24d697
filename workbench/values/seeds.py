"""Seeds are addresses, not state (invariant 8): every draw is a function of where it happens, never of what ran before.

    seed_of(run_seed, "engine", step, task_id, attempt, turn)  ->  the same 63-bit number in every process, for ever

Nothing here holds state, so work may finish in any order and be resumed anywhere without a random-number state to save.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def seed_of(*address: int | str) -> int:
    """A 63-bit seed, hashed stably from the parts of an address.

    Parts are integers or strings; their types are part of the address, so `1` and `"1"` differ. Python's own `hash`
    is salted per process and must never be used for this (it made another system's levels differ between processes).
    """
    digest = blake2b(digest_size=8)
    for part in address:
        if isinstance(part, bool) or not isinstance(part, (int, str, np.integer)):
            raise TypeError(
                f"a seed address holds ints and strings, got {part!r}; name the thing by its id instead"
            )
        encoded = f"{'s' if isinstance(part, str) else 'i'}{part}".encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return int.from_bytes(digest.digest(), "big") >> 1


def rng_at(*address: int | str) -> np.random.Generator:
    """A numpy generator that belongs to one address. Philox: counter-based, identical on every platform."""
    return np.random.Generator(np.random.Philox(key=seed_of(*address)))
