"""Search by meaning: an encoder makes vectors of texts, and FAISS (extra `dense`) finds the nearest ones.

`encode(texts, query)` gives [texts, width] numbers; `query` says whether the texts are questions, because most encoders
prefix these otherwise. `workbench.extensions.servers.encoder` has one on transformers. Vectors are normalised to length 1, so that
the score is the cosine.

An index file is a line of JSON (which corpus, which encoder, how wide) and then what FAISS itself writes; a bare file that
`faiss.write_index` wrote (of any kind: IVF, PQ, HNSW) is read too, and taken at its word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.basics.regular_files import open_stream
from workbench.tools.retrieval.base import Corpus, Hit, best_first, hits
from workbench.values.errors import ConfigError, DataError

Encode = Callable[[Sequence[str], bool], np.ndarray]

FORMAT = 1
_AT_ONCE = 1024  # texts that are handed to `encode`
# What is nearer than that is equal: the last bits depend on how a product is cut into blocks.
_DECIMALS = 6
_LONGEST_HEADER = 4096


def faiss_module() -> Any:
    """FAISS, or a ConfigError that says how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "dense search needs FAISS, which is not installed here; pip install 'agent-rl-workbench[dense]', "
            f"or search by words (bm25) ({error})"
        ) from error
    return faiss


class Dense:
    """The documents whose vectors are nearest to a query's, by cosine.

    encode    (texts, query) -> [texts, width]
    encoder   what `encode` is called in the index file, so that vectors of two encoders are not taken for one another
    index     a FAISS index of the corpus's vectors, in its order; None: an exact one is made now
    """

    remote = False
    read_only = True  # after it is made, so that all trajectories may search in the same one

    def __init__(
        self, corpus: Corpus, encode: Encode, *, encoder: str = "", index: Any = None
    ) -> None:
        faiss = faiss_module()
        self.corpus = corpus
        self.encode = encode
        self.encoder = encoder
        if index is None:
            for texts in _portions([document.words for document in corpus.documents]):
                vectors = self._vectors(texts, query=False)
                if index is None:
                    index = faiss.IndexFlatIP(vectors.shape[1])
                elif index.d != vectors.shape[1]:
                    raise ConfigError(
                        f"encode gave vectors of width {index.d} and then of {vectors.shape[1]}; expected one"
                    )
                index.add(vectors)
        if index is not None and index.ntotal != len(corpus):
            raise ConfigError(
                f"this index holds {index.ntotal:,} vectors, the corpus {len(corpus):,} documents; make the "
                "index anew, or name the corpus that it was made of"
            )
        self.index = index

    def search(self, query: str, k: int) -> list[Hit]:
        """As in `Searcher`. A query without any character finds nothing."""
        if not query.strip() or k < 1 or self.index is None:
            return []
        vector = self._vectors([query], query=True)
        if vector.shape[1] != self.index.d:
            raise ConfigError(
                f"the query's vector has width {vector.shape[1]}, those of the index {self.index.d}; take the "
                "encoder that the index was made with"
            )
        scores, places = self._candidates(vector, k)
        order = np.argsort(places)
        scores = scores[order]
        places = places[order]
        best = best_first(scores, k)
        return hits([self.corpus.documents[places[i]] for i in range(len(places))], scores, best)

    def _candidates(self, vector: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and places of at least the k nearest and of all that are as near as the last of them."""
        count = min(2 * k, len(self.corpus))
        while True:
            [all_scores], [all_places] = self.index.search(vector, count)
            scores = np.round(all_scores[all_places >= 0], _DECIMALS)
            places = all_places[all_places >= 0]
            if count == len(self.corpus) or len(scores) < count or scores[-1] < scores[k - 1]:
                return scores, places
            count = min(4 * count, len(self.corpus))

    def _vectors(self, texts: Sequence[str], query: bool) -> np.ndarray:
        vectors = np.array(self.encode(texts, query), np.float32, ndmin=2)
        is_finite = bool(np.isfinite(vectors).all())
        if vectors.shape[0] != len(texts) or vectors.ndim != 2 or not is_finite:
            flaw = "" if is_finite else " with numbers that are not finite"
            raise ConfigError(
                f"encode makes one vector of finite numbers a text; {len(texts)} texts gave an array of shape "
                f"{vectors.shape}{flaw}"
            )
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    # -------------------------------------------------------------------------------------------- files

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes of an index file. Takes the index's memory once more."""
        if self.index is None:
            raise DataError("an empty corpus has no index to write")
        header = {
            "format": FORMAT,
            "corpus": self.corpus.digest,
            "encoder": self.encoder,
            "width": self.index.d,
        }
        yield json.dumps(header).encode() + b"\n"
        yield memoryview(faiss_module().serialize_index(self.index))

    @classmethod
    def load(cls, path: Path | str, corpus: Corpus, encode: Encode, *, encoder: str = "") -> Dense:
        """The index in a file, for that very corpus and encoder. Raises DataError for a file that is none or is damaged,
        ConfigError for one that belongs to something else."""
        faiss = faiss_module()
        path = Path(path)
        try:
            with open_stream(path) as file:
                header = _header(file.readline(_LONGEST_HEADER))
                if header is None:
                    file.seek(0)
                index = faiss.read_index(faiss.PyCallbackIOReader(file.read))
        except OSError as error:
            raise DataError(f"cannot read the index {path}: {error.strerror or error}") from error
        except RuntimeError as error:  # FAISS's own; its text holds the place in its source
            raise DataError(
                f"{path} is no FAISS index, or not whole ({str(error).splitlines()[0][-120:]}); make it anew"
            ) from error
        if header is not None:
            for what, mine in (("format", FORMAT), ("corpus", corpus.digest), ("encoder", encoder)):
                if header.get(what) != mine:
                    raise ConfigError(
                        f"the index {path} was made with {what} {header.get(what)!r:.80}, here it is "
                        f"{mine!r:.80}; make the index anew, or name what it was made of"
                    )
        return cls(corpus, encode, encoder=encoder, index=index)


def _header(line: bytes) -> dict[str, Any] | None:
    try:
        header = json.loads(line)
    except ValueError:
        return None
    return header if isinstance(header, dict) else None


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[start : start + _AT_ONCE] for start in range(0, len(texts), _AT_ONCE))
