"""Dense search with a toy encoder and the real FAISS; an encoder on transformers, with a tiny random model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from workbench.extensions.servers.dense import Dense
from workbench.tools.retrieval import Corpus, Document
from workbench.values.errors import ConfigError, DataError, PolicyError

faiss = pytest.importorskip("faiss", reason="FAISS is the extra `dense`")
WORDS = ("sun", "sea", "ice", "fire", "sun sea", "sun", "")
CORPUS = Corpus([Document(f"d{index}", "", text) for index, text in enumerate(WORDS)])


def letters(texts, query: bool) -> np.ndarray:
    """How often each letter is in a text."""
    return np.array(
        [[text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts], float
    )


def ids(dense: Dense, query: str, k: int) -> list[str]:
    return [hit.document.id for hit in dense.search(query, k)]


def test_the_nearest_come_first_and_equals_in_the_order_of_the_corpus():
    dense = Dense(CORPUS, letters)
    assert ids(dense, "sun", 3) == ["d0", "d5", "d4"] and dense.search("sun", 1)[
        0
    ].score == pytest.approx(1.0)
    assert ids(dense, "rife", 2) == ["d3", "d2"]
    assert ids(dense, "  ", 3) == ids(dense, "sun", 0) == [] and len(ids(dense, "sun", 99)) == 7
    assert ids(Dense(Corpus(()), letters), "sun", 3) == []


def test_a_tie_across_the_last_place_is_broken_by_order():
    corpus = Corpus(
        [Document(str(index), "", "sun" if index % 3 else "sea") for index in range(300)]
    )
    assert ids(Dense(corpus, letters), "nus", 4) == ["1", "2", "4", "5"]


def test_what_encode_gives_is_checked():
    for encode, said in (
        (lambda texts, query: np.zeros((1, 3)), "one vector of finite numbers a text"),
        (lambda texts, query: np.full((len(texts), 3), np.nan), "not finite"),
        (
            lambda texts, query: np.ones((len(texts), 2 + query)),
            "the encoder that the index was made",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            Dense(CORPUS, encode).search("sun", 1)


def test_an_index_comes_back_and_belongs_to_its_corpus_and_encoder(tmp_path):
    dense = Dense(CORPUS, letters, encoder="letters")
    whole = b"".join(bytes(chunk) for chunk in dense.chunks())
    path = tmp_path / "letters.index"
    path.write_bytes(whole)
    again = Dense.load(path, CORPUS, letters, encoder="letters")
    assert again.search("sun sea", 3) == dense.search("sun sea", 3)
    with pytest.raises(ConfigError, match="made with encoder 'letters', here it is 'others'"):
        Dense.load(path, CORPUS, letters, encoder="others")
    with pytest.raises(ConfigError, match="made with corpus"):
        Dense.load(path, Corpus(CORPUS.documents[::-1]), letters, encoder="letters")
    for damaged in (whole[:-40], whole[:200], b"", b"{}\n", b"hello\n" * 99):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="no FAISS index, or not whole"):
            Dense.load(path, CORPUS, letters, encoder="letters")
    with pytest.raises(DataError, match="cannot read the index"):
        Dense.load(tmp_path / "none", CORPUS, letters)


def test_a_bare_index_of_any_kind_is_read_and_must_be_as_long_as_the_corpus(tmp_path):
    vectors = letters(WORDS, False).astype(np.float32)
    index = faiss.IndexHNSWFlat(26, 8, faiss.METRIC_INNER_PRODUCT)
    index.add(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
    faiss.write_index(index, str(tmp_path / "bare"))
    assert ids(Dense.load(tmp_path / "bare", CORPUS, letters), "sun", 2) == ["d0", "d5"]
    with pytest.raises(ConfigError, match="7 vectors, the corpus 3 documents"):
        Dense.load(tmp_path / "bare", Corpus(CORPUS.documents[:3]), letters)


def test_without_faiss_it_says_what_to_install():
    program = (
        "import sys\nsys.modules['faiss'] = None\nfrom workbench.values.errors import ConfigError\n"
        "from workbench.tools.retrieval import Corpus\nfrom workbench.extensions.servers.dense import Dense\n"
        "try: Dense(Corpus(()), None)\nexcept ConfigError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'agent-rl-workbench[dense]'" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("first", ["faiss", "torch"])
def test_faiss_and_torch_live_in_one_process_with_two_threads_each(first):
    """Each brings an OpenMP of its own; together they must neither crash nor wait for each other."""
    program = (
        f"import {first}\nimport faiss, torch, threading, numpy as np\n"
        "index = faiss.IndexFlatIP(32); index.add(np.ones((9000, 32), np.float32))\n"
        "def work():\n"
        "    for _ in range(5): index.search(np.ones((40, 32), np.float32), 3); torch.ones(300, 300) @ torch.ones(300, 300)\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "[t.start() for t in threads]; work(); [t.join() for t in threads]; print('both')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={"OMP_NUM_THREADS": "2", "PATH": ""},
    )
    assert done.stdout == "both\n", done.stderr


# ------------------------------------------------------------------------------------------------ on transformers


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    """A folder with a random BERT of two layers and a tokenizer of a few words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoders") / "bge-tiny"
    words = [
        "[PAD]",
        "[UNK]",
        "sun",
        "sea",
        "ice",
        "fire",
        *"Represent this sentence for searching relevant passages :".split(),
    ]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(words),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=24,
        )
        BertModel(config).eval().save_pretrained(folder)
    return folder


def test_an_encoder_makes_the_same_vectors_alone_and_in_a_padded_batch(tiny_bert):
    from workbench.extensions.servers.encoder import BGE_QUERY, TextEncoder, encoder

    encode = encoder(str(tiny_bert))
    assert (encode.pooling, encode.query, encode.passage, encode.most_tokens) == (
        "cls",
        BGE_QUERY,
        "",
        24,
    )
    texts = ["sun", "sea ice fire", "sun sea", "fire " * 60]
    for each in (
        encode,
        TextEncoder(encode.model, encode.tokenizer, "mean", most_tokens=24, batch_size=3),
    ):
        together = each(texts, False)
        alone = np.concatenate([each([text], False) for text in texts])
        assert together.dtype == np.float32
        np.testing.assert_allclose(together, alone, atol=1e-5)
        np.testing.assert_allclose(
            together[3], each(["fire " * 24], False)[0], atol=1e-5
        )  # cut at most_tokens
    assert np.abs(encode(["sun"], True) - encode(["sun"], False)).max() > 1e-3
    np.testing.assert_allclose(encode(["sun"], True), encode([BGE_QUERY + "sun"], False), atol=1e-6)


def test_dense_search_runs_on_it_and_a_wrong_name_is_an_error(tiny_bert):
    from workbench.extensions.servers.encoder import TextEncoder, encoder

    encode = encoder(str(tiny_bert))
    plain = TextEncoder(encode.model, encode.tokenizer, "mean")
    assert ids(Dense(CORPUS, plain), "sun", 2) == ["d0", "d5"]
    with pytest.raises(PolicyError, match="cannot be loaded"):
        encoder(str(tiny_bert / "nothing"))
    with pytest.raises(ConfigError, match="cls or mean"):
        TextEncoder(None, None, "max")


@pytest.mark.parametrize(
    ("bend", "words"),
    [
        ({"auto_map": {"AutoModel": "evil.Evil"}}, "trust_remote_code is off"),
        ({"num_hidden_layers": 10**9}, "was tried in a process of its own"),
        ({"vocab_size": 9_000_000}, "describes [0-9,]+ weights"),
        ({"model_type": 3}, "cannot be loaded"),
        ({"attn_implementation": "evil/kernel"}, "asks for the kernel"),
    ],
)
def test_an_encoder_is_looked_at_like_any_model(tiny_bert, tmp_path, bend, words, monkeypatch):
    """A stranger's run may name one by a folder: nothing asks, runs, or goes on for ever."""
    from workbench.extensions.bounds import trial
    from workbench.extensions.servers.encoder import encoder

    monkeypatch.setattr(trial, "SECONDS", 3.0)
    folder = tmp_path / "bge"
    shutil.copytree(tiny_bert, folder)
    mark = tmp_path / "mark"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | bend))
    with pytest.raises(PolicyError, match=words):
        encoder(str(folder))
    assert not mark.exists()


def test_an_encoder_of_pickles_or_of_the_hub_is_refused(tiny_bert, tmp_path, monkeypatch):
    import huggingface_hub
    import torch

    from workbench.extensions.servers.encoder import encoder

    folder = tmp_path / "bge"
    shutil.copytree(tiny_bert, folder)
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match="Pickled weights can run code"):
        encoder(str(folder))
    asked = []
    fetch = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: (asked.append(k), fetch(*a, **k))[1]
    )
    with pytest.raises(
        PolicyError, match="not fetched unasked. Fetch it once: hf download nobody/x"
    ):
        encoder("nobody/x")
    assert [words["local_files_only"] for words in asked] == [True]
