"""How often a measure makes an accelerator wait, and that its numbers stay those of a processor.

A processor stands in for the accelerator: work is cut as for one, and what would wait is counted.
"""

import math
from dataclasses import replace

import pytest
import torch

from layerlab.measures.quantities.spectrum import spectrum
from layerlab.measures.runner import Readings, readings
from layerlab.observe.tracing import device_schedule
from layerlab.observe.tracing.attention import tiles as attention_tiles
from layerlab.observe.tracing.attention.tiles import each_group
from layerlab.observe.tracing.device_schedule import map_host
from layerlab.plugins import resolve
from tests.families.recipe import build
from tests.measures.asked import subject
from tests.measures.regime import KINDS, record
from tests.support.host_reads import Counts, counted

SHAPE = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}
SEQUENCES = [torch.arange(200) % 61, torch.arange(200) * 7 % 59]
# Most operations for one layer of one sequence; before, these were 31,812 for the spectrum of
# 8 heads at 2,048 tokens, and 7,591 for a block's derivative.
OPERATIONS = {
    "diversity": 300,
    "stream": 300,
    "gain": 180,
    "lipschitz": 1500,
    "dimension": 130,  # what threads of the host do with it included
}
# Most for the heads of one layer, of all sequences and all measures together; 14,700 before, for
# two sequences.
HEADS, HEAD_OPERATIONS = ("spectrum", "attention"), 3100

FIRST_GAIN = 2450

DECOMPOSED = {"eigh", "eigvalsh", "svd", "svdvals", "matrix_norm"}


@pytest.fixture
def cut_for_an_accelerator(monkeypatch):
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)


def read(model, names=()) -> Readings:
    return readings(
        subject(model), SEQUENCES, [one for one in resolve() if one.name in names or not names]
    )


def of_each_record(
    model, sequences=SEQUENCES, names=()
) -> dict[tuple[str, int | None], list[Counts]]:
    """Count each call of each measure, or of those, by its name and the sequence's number."""
    found: dict[tuple[str, int | None], list[Counts]] = {}

    def counting(measure):
        def give(record, run):
            with counted() as counts:
                rows = list(measure.read(record, run))
            key = (measure.name, getattr(record, "sequence", None))
            found.setdefault(key, []).append(counts)
            return rows

        return replace(measure, read=give)

    asked = [one for one in resolve() if one.name in names or not names]
    readings(subject(model), sequences, list(map(counting, asked)))
    return found


def of_heads(model, sequences) -> list[tuple[int, int]]:
    """Count reads and operations for the heads of each layer, of all sequences and measures."""
    found = of_each_record(model, sequences)
    calls = [each for (name, _), each in found.items() if name in HEADS]
    return [
        (
            sum(sum(counts.reads.values()) for counts in layer),
            sum(sum(counts.operations.values()) for counts in layer),
        )
        for layer in zip(*calls, strict=True)
    ]


@pytest.mark.full
def test_heads_of_all_sequences_and_measures_wait_three_times_for_a_layer(
    tiny, cut_for_an_accelerator
):
    model = tiny("llama", **SHAPE)
    (*_, one), both = of_heads(model, SEQUENCES[:1]), of_heads(model, SEQUENCES)
    assert len(both) == model.config.num_hidden_layers
    for reads, operations in both:
        assert 0 < reads <= 3 and operations <= HEAD_OPERATIONS
        # As many rounds as the slowest head takes, whichever sequence it is in.
        assert operations <= 1.5 * one[1]


@pytest.mark.full
def test_sequences_of_other_lengths_and_without_room_are_read_by_themselves(tiny, monkeypatch):
    model = tiny("llama", **SHAPE)
    cramped = replace(device_schedule.ACCELERATOR, waiting_bytes=0)
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", cramped)
    assert all(3 < reads <= 6 for reads, _ in of_heads(model, SEQUENCES))
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)
    uneven = [SEQUENCES[0], SEQUENCES[1][:190]]
    assert all(3 < reads <= 6 for reads, _ in of_heads(model, uneven))


@pytest.mark.full
def test_no_measure_waits_more_than_three_times_for_a_layer(tiny, cut_for_an_accelerator):
    found = of_each_record(tiny("llama", **SHAPE))
    assert {name for name, sequence in found if sequence == 1} == {*OPERATIONS, *HEADS}
    for (name, sequence), calls in found.items():
        if name in HEADS:
            continue
        for counts in calls:
            assert sum(counts.reads.values()) <= 3, (name, counts.reads)
            if sequence == 1:  # with the first the weights are read, once for a layer
                assert sum(counts.operations.values()) <= OPERATIONS[name], name


@pytest.mark.full
def test_weights_wider_than_the_host_decomposes_are_bounded_in_few_operations(
    tiny, cut_for_an_accelerator
):
    """With the first sequence; before, 14,900: each matrix by itself, each form on all rows."""
    wide = {"hidden_size": 320, "intermediate_size": 640, "vocab_size": 64}
    found = of_each_record(tiny("llama", **{**SHAPE, **wide}), names=["gain", *HEADS])
    for counts in found["gain", 0]:
        assert counts.operations.total() <= FIRST_GAIN and counts.reads.total() <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_spectrum_waits_twice_in_every_regime_of_heads(kind, cut_for_an_accelerator):
    with counted() as counts:
        spectrum(record(kind, 300))
    assert sum(counts.reads.values()) <= 2


@pytest.mark.full
def test_heads_whose_bounds_are_slow_to_meet_wait_a_few_times_more(cut_for_an_accelerator):
    """Before, a narrow window waited 5 times, and halves that hardly touch 15 times."""
    bias = torch.zeros(1, 1024, 1024)
    bias[:, 512:, :512] = -20.0
    halves = replace(record("init", 1024, heads=1), bias=bias)
    for attended, most in ((record("local", 512, window=8), 3), (halves, 5)):
        with counted() as counts:
            spectrum(attended)
        assert sum(counts.reads.values()) <= most


def test_what_moves_to_the_host_by_another_name_is_a_read_too():
    given = torch.ones(3)
    with counted() as counts:
        held = given.to("cpu")
        given.to(held)
        given.double().type_as(held)
        given.to(given.new_ones(1).double())
        held.to("cpu")
    assert +counts.reads == {"to": 2, "type_as": 1}


def test_what_threads_of_the_host_do_is_counted(cut_for_an_accelerator):
    given = [torch.ones(2)]
    with counted() as counts:
        found = list(map_host(lambda one: float(one.sum()), given, torch.device("cpu")))
    assert found == [2.0] and counts.reads["__float__"] == 1
    assert counts.operations["aten.sum.default"] == 1


def test_what_is_counted_as_a_read_and_what_is_not():
    given = torch.ones(3)
    with counted() as counts:
        assert bool(given.sum() > 0) and float(given.cpu().sum()) == 3
        given[given > 0].tolist()
        (torch.zeros(2) + 1).tolist()
    assert +counts.reads == {"__bool__": 1, "cpu": 1, "__getitem__": 1, "tolist": 1}
    assert counts.operations["aten.sum.default"] == 2


@pytest.mark.full
def test_numbers_are_those_of_a_processor(tiny, monkeypatch):
    model = tiny("llama", **SHAPE)
    processor = read(model)
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)
    other = read(model)
    assert processor.rows.keys() == other.rows.keys()
    for name, rows in processor.rows.items():
        for row, one in zip(rows, other.rows[name], strict=True):
            for column, value in row.items():
                agrees = value == one[column] or (math.isnan(value) and math.isnan(one[column]))
                # Iterations go on for longer there: bounds and lower bounds may only improve.
                loose = (
                    1e-3 if column in ("upper", "lower") else 0.1 if name == "lipschitz" else 1e-5
                )
                assert agrees or one[column] == pytest.approx(value, rel=loose), (name, column)


SHORT = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("MPS backend out of memory (MPS allocated: 18.00 GiB, max allowed: 18.13 GiB)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize("error", SHORT, ids=["cuda", "mps", "cublas"])
@pytest.mark.parametrize("room", [1, 3, 8])
def test_heads_are_read_by_halves_where_memory_is_short(
    room, error, caplog, cut_for_an_accelerator
):
    tried: list[int] = []

    def give(part):
        tried.append(part.heads)
        if part.heads > room:
            raise error
        return part.query[:, 0, 0]

    whole = record("init", 40, heads=8)
    found = torch.cat(each_group(whole, torch.float32, give))
    assert torch.equal(found, whole.query[:, 0, 0])
    assert tried[0] == 8 and max(tried[-2:]) <= room
    said = [one.getMessage() for one in caplog.records]
    assert all("the memory of cpu is short: attention is read" in line for line in said)
    assert bool(said) == (room < 8)


@pytest.mark.parametrize(("heads", "message"), [(1, "CUDA out of memory"), (8, "no such product")])
def test_one_head_that_does_not_fit_and_any_other_fault_are_errors(heads, message):
    def give(part):
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match=message):
        each_group(record("init", 40, heads=heads), torch.float32, give)


def test_streamed_tiles_give_the_norms_of_kept_ones(cut_for_an_accelerator):
    attended = record("peaky", 300)
    kept, streamed = spectrum(attended), spectrum(attended, dense=100)
    assert torch.allclose(kept.norm, streamed.norm, rtol=1e-5)
    assert torch.allclose(kept.contraction, streamed.contraction, rtol=1e-4)


def test_blocks_of_an_accelerator_hold_all_heads_and_few_rows_are_never_cut(
    cut_for_an_accelerator,
):
    assert attention_tiles.height(record("init", 100)) == 128
    assert attention_tiles.height(record("init", 2000)) == 500


@pytest.mark.full
def test_an_accelerator_decomposes_no_weights_and_no_features(tiny, cut_for_an_accelerator):
    """A matrix of the width's size takes it seconds, and stops it."""
    found: dict[str, list[Counts]] = {}

    def counting(measure):
        def close(run):
            with counted() as counts:
                rows = list(measure.close(run))
            found.setdefault(measure.name, []).append(counts)
            return rows

        return replace(measure, close=close) if measure.close else measure

    model = tiny("llama", **SHAPE)
    readings(subject(model), SEQUENCES, list(map(counting, resolve())))
    (dimension,) = found["dimension"]
    layers = model.config.num_hidden_layers + 1
    # Some layers were begun before.
    assert set(+dimension.reads) <= {"cpu"} and dimension.reads["cpu"] < layers
    of_weights = of_each_record(model)
    for name in ("gain", "querykey"):
        for counts in of_weights[name, 0 if name == "gain" else None]:
            assert not DECOMPOSED & set(+counts.reads), (name, counts.reads)
    assert all(sum(one.reads.values()) <= 3 for one in of_weights["querykey", None])


def test_dimensions_that_are_read_beside_the_rest_are_those_of_all_batches(tiny, monkeypatch):
    more = [torch.arange(60).view(3, 20), torch.arange(20)[None]]
    given = subject(tiny("llama")), SEQUENCES, resolve(["dimension"])
    processor = readings(*given, more=more).rows["dimension"]
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)
    assert readings(*given, more=more).rows["dimension"] == processor
    assert {row["tokens"] for row in processor} == {480}


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "gptj"])
def test_masks_and_branches_are_read_at_once_in_every_family(family, cut_for_an_accelerator):
    """Sliding windows, softcap, sinks, and scores that a family computes by itself."""
    model = build(family)
    sequences = [torch.arange(50) * step % 57 for step in (1, 5, 7)]
    layers, texts = model.config.num_hidden_layers, len(sequences)
    weights = len(list(model.parameters()))
    kinds = len(set(getattr(model.config, "layer_types", None) or ["full"]))
    scores = family == "gptj"
    with counted() as counts:
        found = readings(subject(model), sequences, resolve(["spectrum", "attention"]))
    assert len(found.rows["spectrum"]) == texts * layers * model.config.num_attention_heads
    # The heads, of all sequences at once where they can be joined; and each kind of mask.
    of_heads = 3 * layers * (texts if scores else 1) + kinds
    # Is a layer's stream finite, does each of two branches join it, are a family's scores causal.
    of_layers = (3 + scores) * layers * texts
    # Is the attention what was heard, of each sequence; is the embedding finite, are tokens in
    # reach, the loss.
    once = layers * texts + 4 * texts + weights
    assert sum(counts.reads.values()) <= of_heads + of_layers + once, counts.reads
    # The first vector of one process, and the best one of each.
    assert sum(counts.copies.values()) <= 3 * layers * (texts if scores else 1), counts.copies


def test_what_is_counted_as_a_copy_and_what_is_not():
    device = torch.device("cpu")
    given = torch.ones(3, device=device)
    with counted() as counts:
        held = given.cpu()
        held.double().to(torch.float32)
        given.to(torch.float64)
        given[torch.arange(2, device=device)]
        assert not +counts.copies
        given[[0, 0, 1]]
        torch.tensor([1.0, 2.0], device=device)
        held.to(given)
        held.to(device)
    assert +counts.copies == {"__getitem__": 1, "tensor": 1, "to": 2}


@pytest.mark.full
@pytest.mark.parametrize("room", ["all", "two", "none"])
def test_weights_of_layers_that_fit_are_multiplied_side_by_side(room, tiny, monkeypatch):
    """Before, 5,470 operations for each layer: each matrix was multiplied by itself."""
    model = tiny("llama", **SHAPE, num_hidden_layers=4)
    alone = [row["weights"] for row in read(model, {"lipschitz"}).rows["lipschitz"]]
    layer = sum(one.numel() * 4 for one in model.model.layers[0].parameters() if one.dim() > 1)
    tile_bytes = {"all": 2**30, "two": 2 * layer, "none": layer}[room]
    schedule = replace(device_schedule.ACCELERATOR, tile_bytes=tile_bytes)
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", schedule)
    found = [row["weights"] for row in read(model, {"lipschitz"}).rows["lipschitz"]]
    assert found == pytest.approx(alone, rel=1e-5, nan_ok=True) and len(found) == 10
    counts = of_each_record(model, names=["lipschitz"])
    first, other = (counts["lipschitz", sequence] for sequence in (0, 1))
    spent = [
        sum(one.operations.values()) - sum(again.operations.values())
        for one, again in zip(first, other, strict=True)
    ]
    begins = {"all": [0], "two": [0, 2], "none": [0, 1, 2, 3]}[room]
    assert [number for number, count in enumerate(spent[1:]) if count] == begins
    assert max(spent) < 3000
