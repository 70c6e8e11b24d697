"""`workbench retriever`: a corpus behind HTTP, so that several runs (or machines) search one index."""

from __future__ import annotations

import argparse
import os

from workbench.types.errors import ConfigError


def retriever_command(args: argparse.Namespace) -> int:
    from workbench.envs.qa.files import read_corpus
    from workbench.envs.search import Bm25, Corpus
    from workbench.envs.search.remote import KEY_VARIABLE
    from workbench.envs.search.server import RetrievalServer

    if args.searcher == "dense" and not args.encoder:
        raise ConfigError(
            "dense search needs --encoder, a model's name or folder (BAAI/bge-large-en-v1.5, for one)"
        )
    if args.searcher != "dense" and (args.encoder or args.index):
        raise ConfigError("--encoder and --index go with --searcher dense")
    key = args.key or os.environ.get(KEY_VARIABLE)
    # Bound before minutes go into an index: a refused host or a port that is taken is said at once.
    with RetrievalServer(None, args.host, args.port, k=args.k, key=key) as server:
        corpus = Corpus(tuple(read_corpus(args.corpus)))
        if not len(corpus):
            raise ConfigError(
                f"{args.corpus} holds no documents; expected lines "
                '{"_id": ..., "title": ..., "text": ...}'
            )
        server.searcher = _dense(args, corpus) if args.searcher == "dense" else Bm25(corpus)
        server.about = {
            "documents": len(corpus),
            "corpus": corpus.digest,
            "searcher": args.searcher,
        }
        secured = "; every request carries the key" if key else ""
        print(
            f"{server.url} searches {len(corpus):,} documents of {args.corpus} ({args.searcher}){secured}; Ctrl-C or "
            "SIGTERM ends it",
            flush=True,
        )
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:  # what it is told to end by, SIGTERM too: nothing is lost
            from workbench.views.words import count

            print(f"ended after {count(server.searches, 'search')}", flush=True)
    return 0


def _dense(args: argparse.Namespace, corpus):
    """The index in the file, or a new one, which is then written there."""
    from workbench.engines.encoder import encoder
    from workbench.envs.search.dense import Dense, faiss_module
    from workbench.run.writer import write_file

    faiss_module()
    encode = encoder(args.encoder)
    if args.index is not None and args.index.exists():
        return Dense.load(args.index, corpus, encode, encoder=args.encoder)
    dense = Dense(corpus, encode, encoder=args.encoder)
    if args.index is not None:
        write_file(args.index, dense.chunks())
    return dense
