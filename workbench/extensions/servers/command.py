"""`workbench retriever`: a corpus behind HTTP, so that several runs (or machines) search one index."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from workbench.cli.numbers import number_from_zero, whole_number
from workbench.cli.options import AddCommand
from workbench.values.errors import ConfigError


def add_retriever(command: AddCommand) -> None:
    sub = command("retriever", retriever_command)
    sub.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="FILE",
        help="lines of JSON with _id, title and text, as BEIR's corpus.jsonl; .gz too",
    )
    sub.add_argument(
        "--host", default="127.0.0.1", help="any other than this machine's own needs --key"
    )
    sub.add_argument(
        "--port",
        type=number_from_zero,
        default=0,
        help="0, the default: any free one; the first line printed names it",
    )
    sub.add_argument(
        "--k",
        type=whole_number,
        default=5,
        help="documents to answer with where a request does not say",
    )
    sub.add_argument(
        "--key",
        help="every request must carry it (Authorization: Bearer KEY); better put it into the "
        "environment, WORKBENCH_RETRIEVER_KEY, where other users do not see it",
    )
    sub.add_argument("--searcher", choices=("bm25", "dense"), default="bm25")
    sub.add_argument(
        "--encoder",
        metavar="MODEL",
        help="of --searcher dense: a Hugging Face encoder, by name or folder",
    )
    sub.add_argument(
        "--index",
        type=Path,
        metavar="FILE",
        help="of --searcher dense: read from here, or made and written",
    )


def retriever_command(args: argparse.Namespace) -> int:
    from workbench.extensions.servers.search_client import KEY_VARIABLE
    from workbench.extensions.servers.search_server import RetrievalServer
    from workbench.tools.retrieval import Bm25, Corpus
    from workbench.worlds.qa.files import read_corpus

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
            from workbench.look.words import count

            print(f"ended after {count(server.searches, 'search', 'searches')}", flush=True)
    return 0


def _dense(args: argparse.Namespace, corpus):
    """The index in the file, or a new one, which is then written there."""
    from workbench.extensions.servers.dense import Dense, faiss_module
    from workbench.extensions.servers.encoder import encoder
    from workbench.run.writer import write_file

    faiss_module()
    encode = encoder(args.encoder)
    if args.index is not None and args.index.exists():
        return Dense.load(args.index, corpus, encode, encoder=args.encoder)
    dense = Dense(corpus, encode, encoder=args.encoder)
    if args.index is not None:
        write_file(args.index, dense.chunks())
    return dense
