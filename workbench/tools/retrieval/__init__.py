"""Finding documents: BM25 in this process, dense vectors with FAISS, or a server. No policy, no tool, no tensor library."""

from __future__ import annotations

from workbench.tools.retrieval.base import MOST_QUERY_CHARACTERS, Corpus, Document, Hit, Searcher
from workbench.tools.retrieval.bm25 import Bm25

__all__ = ["MOST_QUERY_CHARACTERS", "Bm25", "Corpus", "Document", "Hit", "Searcher"]
