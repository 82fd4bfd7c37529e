"""Two kinds of text in turns: the ratio is one of tokens, whatever documents they come in."""

import json
from math import gcd
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.adaptation.pretraining.replay import (
    BlockDataset,
    MixedCorpus,
    ReplayData,
    mix_texts,
    stack_rows,
)
from layerlab.corpus.batches import BatchOrder
from layerlab.corpus.corpus import Corpus
from layerlab.corpus.streams import TokenStream
from layerlab.recipes.training_sections import Source
from tests.adaptation.small import LAW, NATURE, words, written
from tests.support.refused import refuses

VALIDATION = 0.2


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    return written(folder / "law.jsonl", LAW, 60, 1), written(
        folder / "nature.jsonl", NATURE, 90, 2
    )


def mix(
    texts: tuple[Path, Path], cache: Path, ratio: tuple[float, ...] = (1, 1), **options: object
) -> MixedCorpus:
    domain, general = texts
    reading = ReplayData(
        domain=domain, general=general, validation=VALIDATION, cache=cache, **options
    )
    return mix_texts(words(), reading, ratio=ratio)


def stream(lengths: list[int], name: str, weight: float) -> TokenStream:
    """Documents of so many tokens each, a separator before each of them."""
    sizes = np.array(lengths) + 1
    return TokenStream(
        name=name,
        tokens=np.arange(sizes.sum(), dtype=np.uint16),
        starts=np.concatenate([[0], np.cumsum(sizes)[:-1]]),
        ends=None,
        bytes=int(sum(lengths)),
        weight=weight,
    )


documents = st.lists(st.integers(0, 40), min_size=1, max_size=20).map(lambda some: [9, *some])


@settings(max_examples=100, deadline=None)
@given(documents, documents, st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(1, 8))
def test_no_prefix_strays_from_the_ratio_by_a_block(first, second, ratio, block):
    corpus = Corpus(
        folder=Path(),
        vocab=2000,
        separator=0,
        digest="",
        train=(stream(first, "a", float(ratio[0])), stream(second, "b", float(ratio[1]))),
        validation=(),
    )
    blocks = BlockDataset(BatchOrder(corpus, block, seed=3), 64)
    share = ratio[0] / sum(ratio)
    for count in range(1, len(blocks) + 1):
        read = blocks.read(count)
        assert sum(read) == count and abs(read[0] - share * count) < 1
    rows = stack_rows(blocks.__getitems__(range(64)))
    assert rows["input_ids"].shape == rows["labels"].shape == (64, block)
    # After as many turns as the ratio has parts it is met exactly.
    turns = sum(ratio) // gcd(*ratio)
    assert blocks.read(turns)[0] * ratio[1] == blocks.read(turns)[1] * ratio[0]


def test_rows_are_the_same_however_they_are_asked_for(texts, tmp_path):
    order = BatchOrder(mix(texts, tmp_path, ratio=(3, 2)).corpus, 8, seed=5)
    blocks = BlockDataset(order, 40)
    whole = stack_rows(blocks.__getitems__(list(range(40))))
    mixed_up = [7, 8, 9, 3, 39, 0, 1]
    some = stack_rows(blocks.__getitems__(mixed_up))
    assert torch.equal(some["input_ids"], whole["input_ids"][mixed_up])
    assert torch.equal(blocks[11]["labels"], whole["labels"][11])
    assert torch.equal(whole["input_ids"][:, 1:], whole["labels"][:, :-1])
    chosen = BlockDataset(order, 4, [2, 9])
    assert len(chosen) == 8
    assert torch.equal(chosen[5]["input_ids"], whole["input_ids"][37])
    sources, _ = order.places(np.array([8, 9, 10, 11, 36, 37, 38, 39]))
    assert chosen.read(8) == np.bincount(sources).tolist() != blocks.read(8)


def test_a_replay_of_nothing_still_holds_general_text_out(texts, tmp_path):
    off, on = mix(texts, tmp_path, ratio=(1, 0)), mix(texts, tmp_path)
    assert off.kinds == ("domain",) and on.kinds == ("domain", "general")
    assert set(off.held) == {"domain", "general"}
    assert off.corpus.folder == on.corpus.folder, "both arms measure on the same text"
    general = [corpus.held["general"].validation[0].tokens for corpus in (off, on)]
    assert np.array_equal(*general) and len(off.corpus.train) == 1
    alone = mix_texts(words(), ReplayData(domain=texts[0], cache=tmp_path))
    assert set(alone.held) == {"domain"}


@pytest.mark.full
def test_several_sources_share_the_part_of_their_kind(texts, tmp_path):
    domain = [Source(text=str(texts[0]), weight=3.0), Source(text=str(texts[1]))]
    reading = ReplayData(
        domain=domain, general="python-docs", validation=VALIDATION, cache=tmp_path
    )
    found = mix_texts(words(), reading, ratio=(2, 1))
    weights = [one.weight for one in found.corpus.train]
    assert found.kinds == ("domain", "domain", "general")
    assert np.allclose(np.array(weights) / sum(weights), [0.5, 1 / 6, 1 / 3])


def test_documents_that_end_are_marked_by_positions(texts, tmp_path):
    order = BatchOrder(mix(texts, tmp_path, documents=True).corpus, 8, seed=0)
    rows = stack_rows(BlockDataset(order, 16).__getitems__(range(16)))
    ends = rows["input_ids"] == order.corpus.separator
    assert ends.any() and (rows["position_ids"][ends] == 0).all()


@pytest.mark.parametrize("ratio", [(0, 1), (1, -1), (1,), (float("inf"), 1), (float("nan"), 1)])
def test_a_ratio_that_is_none_is_refused(texts, tmp_path, ratio):
    refuses("expected the parts of domain and of general text", mix, texts, tmp_path, ratio=ratio)


def test_a_tokenizer_without_an_end_is_named(texts):
    bare = words()
    bare.eos_token = bare.bos_token = None
    bare.name_or_path = "mine"
    with pytest.raises(UserError, match="the tokenizer mine has no token for the end"):
        mix_texts(bare, ReplayData(domain=texts[0]))


def test_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "law.txt").write_bytes(json.dumps("gültig", ensure_ascii=False).encode("latin1"))
    with pytest.raises(UserError, match="is not UTF-8 text"):
        mix_texts(words(), ReplayData(domain=tmp_path / "law.txt", cache=tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"validation": 2.0}, "validation is 2.0; expected a share between 0 and 1"),
        ({"validation": float("nan")}, "validation is nan; expected a share"),
        ({"domain": []}, "there is no text of the domain; give a file, a folder or a name"),
    ],
)
def test_a_reading_that_cannot_be_is_refused(change, said):
    refuses(said, ReplayData, **{"domain": "python-docs", **change})
