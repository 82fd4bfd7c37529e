"""Layers of several sequences read side by side give each its own numbers, in the same order."""

import math
from dataclasses import replace

import pytest
import torch

from layerlab.measures import waiting
from layerlab.measures.runner import readings
from layerlab.measures.support import attention_pass
from layerlab.observe.tracing import device_schedule
from layerlab.plugins import resolve
from tests.families.recipe import build
from tests.measures.asked import subject
from tests.support.live_bytes import live_bytes

ATTENTION = ["spectrum", "attention", "gain"]
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
# Plain ones; with softcap; with sinks and windows; with windows; ones that hand over scores.
FAMILIES = ["llama", "gpt2", "gemma2", "gpt_oss", "mistral", "gptj", "openai-gpt"]
SCORES = {"gptj", "openai-gpt"}
ODD = 37


def texts(*lengths: int) -> list[torch.Tensor]:
    return [
        torch.randint(2, 60, (length,), generator=torch.Generator().manual_seed(number))
        for number, length in enumerate(lengths)
    ]


def read(model, sequences, names=ATTENTION):
    return readings(subject(model), sequences, resolve(names))


@pytest.fixture
def joined(monkeypatch) -> list[int]:
    """How many sequences were joined, each time that heads are read as on an accelerator."""
    found: list[int] = []
    plain = attention_pass.read_joined

    def watching(records, quantities):
        found.append(len(records))
        return plain(records, quantities)

    monkeypatch.setattr(attention_pass, "read_joined", watching)
    return found


def agree(one, other) -> None:
    assert one.rows.keys() == other.rows.keys() and one.notes == other.notes
    for name, rows in one.rows.items():
        assert len(rows) == len(other.rows[name]) > 0
        for mine, theirs in zip(rows, other.rows[name], strict=True):
            for column, value in mine.items():
                if not isinstance(value, float) or math.isnan(value):
                    assert repr(theirs[column]) == repr(value), (name, column)
                    continue
                # Iterations go on for longer there: bounds may only improve.
                loose = 1e-3 if column in ("upper", "lower") else 1e-5
                assert theirs[column] == pytest.approx(value, rel=loose, abs=1e-7), (name, column)


def cut_for_an_accelerator(monkeypatch, **changes) -> None:
    schedule = replace(device_schedule.ACCELERATOR, **changes)
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", schedule)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_sequence_reads_what_it_reads_alone(family, dtype, joined, monkeypatch):
    model = build(family).to(dtype)
    sequences = texts(ODD, ODD, ODD, 20, ODD)
    alone = read(model, sequences)
    assert set(joined) == {1}
    joined.clear()
    cut_for_an_accelerator(monkeypatch)
    agree(alone, read(model, sequences))
    assert max(joined) == (1 if family in SCORES else 3)


@pytest.mark.full
def test_heads_of_other_sequences_change_a_head_within_the_gap_alone(tiny, monkeypatch):
    model = tiny("llama", **GROUPED)
    first, peaky = texts(ODD, ODD)
    peaky = torch.full_like(peaky, 7)  # all rows alike: other heads settle at another step
    cut_for_an_accelerator(monkeypatch)
    agree(read(model, [first]), replace(read(model, [first, peaky]), rows=_of(model, first, peaky)))


def _of(model, first, other):
    rows = read(model, [first, other]).rows
    return {name: [row for row in each if row["sequence"] == 0] for name, each in rows.items()}


@pytest.mark.full
def test_a_layer_that_one_sequence_never_brings_keeps_nobody_waiting(tiny, monkeypatch):
    model = tiny("llama", num_hidden_layers=3)
    sequences = texts(ODD, ODD, ODD)
    sequences[1][5] = 63
    with torch.no_grad():
        model.model.embed_tokens.weight[63] = torch.inf
    alone = read(model, sequences)
    assert alone.faults and {row["sequence"] for row in alone.rows["spectrum"]} == {0, 2}
    cut_for_an_accelerator(monkeypatch)
    agree(alone, read(model, sequences))
    # Where the last of a group is cut short, the others wait for it until the end.
    last = [sequences[0], sequences[2], sequences[1]]
    found = read(model, last)
    assert {row["sequence"] for row in found.rows["spectrum"]} == {0, 1}


@pytest.mark.full
def test_no_more_sequences_wait_than_there_is_room_for(tiny, joined, monkeypatch):
    model = tiny("gpt2")
    sequences = texts(*[ODD] * 5)
    width, layers, float32 = model.config.n_embd, model.config.n_layer, 4
    # Query and key; the stream, and what both sublayers read and gave; a branch is what it gave.
    each = (2 + 5) * ODD * width * float32 * layers
    cut_for_an_accelerator(monkeypatch, waiting_bytes=each)
    read(model, sequences)
    assert joined == [2, 2, 2, 2, 1, 1]
    joined.clear()
    cut_for_an_accelerator(monkeypatch)
    monkeypatch.setattr(waiting, "free_memory", lambda _: 4 * each)
    read(model, sequences)
    assert joined == [2, 2, 2, 2, 1, 1]


@pytest.mark.full
def test_what_waits_holds_what_it_says(tiny, monkeypatch):
    model = tiny("llama", num_hidden_layers=6, hidden_size=64, intermediate_size=64)
    sequences = texts(*[64] * 4)

    def peak() -> int:
        with live_bytes([*model.parameters(), *model.buffers()]) as found:
            read(model, sequences, ["gain"])
        return found.peak

    cut_for_an_accelerator(monkeypatch, waiting_bytes=0)
    none = peak()
    room = 2**20
    cut_for_an_accelerator(monkeypatch, waiting_bytes=room)
    some = peak()
    assert none < some < none + 1.5 * room


def test_scores_and_softmax_of_a_tile_are_computed_once_for_all_measures(tiny, monkeypatch):
    model, sequences = tiny("llama"), texts(ODD)
    record = attention_pass.AttentionRecord
    formed: list[str] = []
    for name in ("masked_scores", "normalize"):
        own = getattr(record, name)

        def counting(*given, own=own, name=name, **options):
            formed.append(name)
            return own(*given, **options)

        monkeypatch.setattr(record, name, counting)
    counts = []
    for names in (["spectrum"], ["attention"], ["spectrum", "attention"]):
        formed.clear()
        read(model, sequences, names)
        counts.append(len(formed))
    assert len(set(counts)) == 1, counts
