"""The order of blocks: a function of the seed and a number; and what held-out text costs."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab import build
from layerlab.corpus.batches import Batch, BatchOrder, EvalBlocks, bits_per_byte, restart_positions
from layerlab.corpus.corpus import Corpus, extent, prepare
from layerlab.corpus.streams import TokenStream
from layerlab.recipes.training_sections import DataSection, Source
from layerlab.tokenization.load import train_tokenizer
from tests.support.refused import refuses


def stream(count: int, weight: float = 1.0, first: int = 1) -> TokenStream:
    """Tokens that say where they stand."""
    tokens = np.arange(first, first + count, dtype=np.uint16)
    ends = np.arange(count, dtype=np.int64) * 2
    return TokenStream(
        name="text",
        tokens=tokens,
        starts=np.zeros(1, np.int64),
        ends=ends,
        bytes=2 * (count - 1),
        weight=weight,
    )


def corpus(*sizes: int, weights: tuple[float, ...] = (), held: tuple[int, ...] = (50,)) -> Corpus:
    weights = weights or (1.0,) * len(sizes)
    train = tuple(
        stream(size, weight, 10_000 * number + 1)
        for number, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    )
    validation = tuple(stream(size, 1.0, 1000 * number + 1) for number, size in enumerate(held))
    return Corpus(Path("nowhere"), 60_000, 0, "digest", train, validation)


@pytest.fixture(scope="module")
def docs(tmp_path_factory) -> Corpus:
    """A real text, with documents."""
    given = DataSection(sources=(Source(limit=60_000),), vocab_size=300, document_masking=True)
    return prepare(given, tmp_path_factory.mktemp("cache"))


def test_targets_are_the_tokens_after_the_inputs(docs):
    batch = BatchOrder(docs, 16, 0).batch(0, 4)
    assert batch.inputs.shape == batch.targets.shape == (4, 16)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])


@given(st.integers(2, 200), st.integers(1, 9), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_each_pass_predicts_every_token_of_whole_blocks_once(size, block, seed):
    text = corpus(size)
    if size - 1 < block:
        refuses("fewer than one block of", BatchOrder, text, block, seed)
        return
    order = BatchOrder(text, block, seed)
    count = (size - 1) // block
    assert extent(text, block).tokens == count * block
    passes = [order.rows(number * count, count)[:, 1:] for number in range(3)]
    for rows in passes:
        assert sorted(rows.flatten().tolist()) == list(range(2, count * block + 2))
    if count > 20:
        assert not np.array_equal(passes[0], passes[1])


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4, 6]))
@settings(max_examples=40, deadline=None)
def test_rows_do_not_depend_on_how_many_are_asked_for(update, part):
    text = corpus(100, 33, weights=(0.7, 0.2))
    whole = BatchOrder(text, 4, 5).batch(update, 12)
    fresh = BatchOrder(text, 4, 5)
    parts = [fresh.batch(update * 12 // part + number, part) for number in range(12 // part)]
    assert torch.equal(whole.inputs, torch.cat([one.inputs for one in parts]))
    shares = [whole.part(rank, 5) for rank in range(5)]
    assert torch.equal(whole.targets, torch.cat([one.targets for one in shares]))


def test_the_seed_and_nothing_else_decides(docs):
    first, again, other = (BatchOrder(docs, 16, seed) for seed in (1, 1, 2))
    later = again.batch(1000, 8).inputs  # asked for first: nothing has to be replayed
    assert torch.equal(first.batch(0, 8).inputs, again.batch(0, 8).inputs)
    assert torch.equal(first.batch(1000, 8).inputs, later)
    assert first.digest == again.digest != other.digest


PINNED = [10021, 5, 29, 10005, 45, 9, 10017, 21, 49]


def test_the_order_is_the_same_in_every_process_and_version():
    """Another order is another experiment: no stored run could be compared any more."""
    rows = BatchOrder(corpus(60, 30, weights=(2.0, 1.0)), 4, 7).rows(10**6, 9)
    assert rows[:, 0].tolist() == PINNED


def test_sources_are_mixed_by_weight_each_pass_on_its_own():
    text = corpus(41, 401, weights=(3.0, 1.0))
    order = BatchOrder(text, 4, 0)  # blocks: 10 and 100
    sources, blocks = order.places(np.arange(400))
    assert (sources == 0).sum() == 300 and (sources == 1).sum() == 100
    assert sorted(blocks[sources == 1]) == list(range(100))
    small = blocks[sources == 0].reshape(30, 10)
    assert all(sorted(one) == list(range(10)) for one in small)
    assert len({tuple(one) for one in small}) > 25
    rows = order.rows(0, 400)
    assert ((rows[:, 0] > 10_000) == (sources == 1)).all()


@given(st.lists(st.integers(2, 90), min_size=1, max_size=3), st.integers(1, 20), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_every_held_out_token_is_predicted_once(sizes, block, size):
    text = corpus(50, held=tuple(sizes))
    held = EvalBlocks(text, block)
    batches = list(held.batches(size))
    assert {batch.inputs.shape[1] for batch in batches} == {block}
    assert sum(map(len, batches)) == len(held)
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    found = targets[targets != -100].tolist()
    assert found == [
        token
        for number, count in enumerate(sizes)
        for token in range(1000 * number + 2, 1000 * number + count + 1)
    ]
    assert held.tokens == len(found) and held.bytes == text.validation_bytes


def test_a_limit_chooses_blocks_everywhere_with_their_own_bytes():
    text = corpus(50, held=(41, 41))
    held = EvalBlocks(text, 4, 5)
    assert len(held) == 5 and held.tokens == 20 and held.bytes == 40
    starts = [int(batch.inputs[0, 0]) for batch in held.batches(1)]
    assert starts == [1, 17, 33, 1009, 1025]
    assert EvalBlocks(text, 4, 5).digest == held.digest != EvalBlocks(text, 4, 6).digest
    assert (
        len(EvalBlocks(text, 4, 1000)) == 20
        and EvalBlocks(text, 4, 1000).digest == EvalBlocks(text, 4).digest
    )


def test_a_last_block_that_is_not_whole_still_reads_tokens():
    for rest in range(1, 8):
        last = list(EvalBlocks(corpus(50, held=(17 + rest,)), 8).batches(2))[-1]
        assert (last.inputs >= 0).all() and (last.targets[-1] >= 0).sum() == rest


def test_held_out_text_without_tokens_is_refused():
    refuses("gives no token to predict; write a larger", EvalBlocks, corpus(50, held=(1,)), 4)


def spelled(corpus: Corpus) -> np.ndarray:
    """Bytes of each entry of a byte-level vocabulary, by its spelling: a letter a byte."""
    sizes = np.zeros(corpus.vocab)
    for token, number in corpus.tokenizer.get_vocab().items():
        sizes[number] = 0 if number == corpus.separator else len(token)
    return sizes


@pytest.mark.parametrize("vocab", [257, 700])
def test_bits_per_byte_do_not_depend_on_the_tokenizer(tmp_path, vocab):
    """Who gives each token the probability 256^-bytes needs 8 bits per byte under any."""
    text = tmp_path / "a.jsonl"
    text.write_text('{"text": "Zw\\u00f6lf K\\u00e4se: 12\\u20ac \\ud83d\\ude00, the the"}\n' * 40)
    given = DataSection(
        sources=(Source(text=str(text)),), vocab_size=vocab, validation_fraction=0.3
    )
    found = prepare(given, tmp_path)
    held, sizes = EvalBlocks(found, 7), spelled(found)
    targets = torch.cat([batch.targets.flatten() for batch in held.batches(3)])
    nats = math.log(256) * sizes[targets[targets != -100].numpy()].sum()
    assert bits_per_byte(nats, held.bytes) == pytest.approx(8, abs=1e-12)
    assert held.bytes == found.validation_bytes == 12 * len("Zwölf Käse: 12€ 😀, the the".encode())


def test_positions_begin_anew_at_separators():
    rows = np.array([[5, 6, 0, 7, 0, 0, 8], [0, 5, 6, 7, 8, 9, 4]])
    assert restart_positions(rows, 0).tolist() == [[0, 1, 0, 1, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6]]


def test_positions_are_given_where_attention_knows_documents(docs):
    batch = BatchOrder(docs, 64, 0).batch(0, 16)
    assert batch.positions is not None
    assert ((batch.positions == 0) >= (batch.inputs == docs.separator)).all()
    assert BatchOrder(corpus(50), 4, 0).batch(0, 1).positions is None
    assert batch[2:5].positions is not None and len(batch[2:5]) == 3
    assert torch.equal(batch.to("cpu").inputs, batch.inputs)


@pytest.mark.parametrize("variant", ["llama", "pangu-pi", "canon", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_really_stops_at_documents(variant, attention):
    """Documents side by side are read as each alone; without positions they are not."""
    model = build(variant, width=32, layers=2, heads=2, vocab=64, context=32)
    model.set_attn_implementation(attention)
    rows = torch.randint(1, 64, (2, 24), generator=torch.Generator().manual_seed(0))
    rows[0, [0, 9, 10]] = 0
    rows[1, 15] = 0
    positions = torch.from_numpy(restart_positions(rows.numpy(), 0))
    with torch.no_grad():
        packed = model(rows, position_ids=positions, use_cache=False).logits
        mixed = model(rows, use_cache=False).logits
        for row, cuts in ((0, (0, 9, 10, 24)), (1, (0, 15, 24))):
            for first, last in itertools.pairwise(cuts):
                alone = model(rows[row : row + 1, first:last], use_cache=False).logits[0]
                torch.testing.assert_close(packed[row, first:last], alone, atol=2e-5, rtol=1e-4)
    assert (packed[1, 15:] - mixed[1, 15:]).abs().max() > 1e-3


def test_a_batch_knows_its_rows():
    tokens = torch.arange(12).view(4, 3)
    batch = Batch(tokens, tokens + 1)
    assert len(batch) == 4 and batch.part(1, 2).targets.tolist() == [[7, 8, 9], [10, 11, 12]]
    assert train_tokenizer(["a"], 257).eos_token_id == 0
