from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.measures.measure import MeasureContext
from layerlab.measures.quantities.attention import MEASURES, entropy_bound, focus
from layerlab.measures.runner import readings
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.records import Layer
from layerlab.plugins import resolve
from tests.families import recipe
from tests.measures.asked import subject
from tests.measures.regime import KINDS, attention, record

EPS = torch.finfo(torch.float64).eps
DOUBLE = torch.float64


def of_scores(scores, **options):
    return focus(AttentionRecord(layer=0, name="scores", scores=scores, **options), dtype=DOUBLE)


def literal_entropy(matrix, counts):
    """Row by row as it is defined: the mean over rows with two keys or more."""
    shares = [
        -sum(a * a.log() for a in row if a > 0) / torch.tensor(float(count)).log()
        for row, count in zip(matrix, counts, strict=True)
        if count > 1
    ]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("causal", [True, False])
def test_uniform_attention_has_entropy_one_and_attains_its_bound(causal):
    found = of_scores(torch.zeros(1, 20, 20), causal=causal)
    assert found.entropy.item() == pytest.approx(1, rel=1e-12)
    assert found.entropy_bound.item() == pytest.approx(1, rel=1e-12)
    assert found.logit_max == 0 and found.logit_range == 0


def test_attention_to_one_key_has_entropy_zero_and_all_mass_in_the_sink():
    scores = torch.zeros(1, 20, 20)
    scores[..., 0] = 500.0
    found = of_scores(scores)
    assert found.entropy.item() == pytest.approx(0, abs=1e-100)
    assert found.sink_mass == 1 and found.sink_column == 0
    assert found.logit_max == 500 and found.logit_range == 500


def test_sink_column_is_the_token_that_receives_most():
    scores = torch.zeros(1, 20, 20)
    scores[..., 6] = 9.0
    assert of_scores(scores).sink_column == 6


@pytest.mark.few(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"window": 9}, {"causal": False}, {"softcap": 3.0}])
def test_readings_are_those_of_a_literal_transcription(kind, options):
    attended = record(kind, 40, **options)
    matrix = attention(attended)
    raw = attended.query.double() @ attended.key.double().mT * attended.scaling
    allowed = attended.allowed_keys().expand(3, 40, 40)
    found = focus(attended, dtype=DOUBLE)
    for head in range(3):
        expected = literal_entropy(matrix[head], allowed[head].sum(-1))
        assert found.entropy[head].item() == pytest.approx(float(expected), rel=1e-7)
        largest = raw[head][allowed[head]].abs().max()
        assert found.logit_max[head].item() == pytest.approx(float(largest), rel=1e-12)
        rows = zip(raw[head], allowed[head], strict=True)
        ranges = [row[use].max() - row[use].min() for row, use in rows]
        assert found.logit_range[head].item() == pytest.approx(float(max(ranges)), rel=1e-12)
    assert torch.allclose(found.sink_mass, matrix[:, :, 0].mean(-1), rtol=1e-9)
    assert torch.equal(found.sink_column, matrix.sum(-2).argmax(-1))


def test_a_forbidden_logit_does_not_count():
    scores = torch.zeros(1, 6, 6)
    scores[0, 0, 5] = 1e4
    assert of_scores(scores).logit_max == 0
    assert of_scores(scores, causal=False).logit_max == 1e4


def test_logits_are_read_before_softcap_and_entropy_after_it():
    plain = record("peaky", 30)
    capped = replace(plain, softcap=1.0)
    before, after = focus(plain), focus(capped)
    assert torch.equal(before.logit_max, after.logit_max)
    assert (after.entropy > before.entropy).all()


@given(st.integers(0, 10**6), st.integers(2, 15), st.floats(0, 30), st.booleans())
@settings(max_examples=100, deadline=None)
def test_entropy_lies_between_its_bound_and_one(seed, tokens, sharpness, causal):
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, tokens, tokens, generator=draw, dtype=DOUBLE) * sharpness
    found = of_scores(scores, causal=causal)
    slack = 32 * tokens * EPS
    assert (found.entropy_bound <= found.entropy + slack).all()
    assert (found.entropy <= 1 + slack).all()


@pytest.mark.parametrize("keys", [2, 3, 20])
@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0, 8.0])
def test_bound_is_attained_by_one_logit_above_equal_ones(keys, spread):
    logits = torch.zeros(keys, dtype=DOUBLE)
    logits[0] = spread * (keys / (keys - 1)) ** 0.5
    weights = torch.softmax(logits, 0)
    entropy = -(weights * weights.log()).sum()
    bound = entropy_bound(torch.tensor([[spread]], dtype=DOUBLE), torch.tensor([[keys]]).double())
    assert bound.item() == pytest.approx(float(entropy), rel=1e-12)


def test_bound_with_all_tokens_as_keys_is_false_under_a_causal_mask():
    # Row i has i keys: with T = n the theorem promises entropy that early rows cannot have.
    scores = torch.zeros(1, 20, 20, dtype=DOUBLE)
    matrix = torch.softmax(scores.masked_fill(~torch.ones(20, 20).tril().bool(), -torch.inf), -1)
    mean = torch.special.entr(matrix).sum(-1).mean()
    promised = entropy_bound(torch.zeros(1, 1).double(), torch.full((1, 1), 20.0).double())
    assert mean < promised.item()


def test_a_single_token_has_no_entropy():
    found = of_scores(torch.zeros(1, 1, 1))
    assert found.entropy.isnan() and found.sink_mass == 1


@pytest.mark.parametrize("sink", [-5.0, 8.0, 200.0])
def test_entropy_and_its_bound_are_of_what_a_sink_leaves_to_the_keys(sink):
    plain = record("init", 20)
    sunk = replace(plain, sinks=torch.full((3,), sink))
    for column in ("entropy", "entropy_bound"):
        expected, found = (getattr(focus(one, dtype=DOUBLE), column) for one in (plain, sunk))
        assert torch.allclose(found, expected, rtol=1e-12), column
    assert (focus(sunk).sink_mass < focus(plain).sink_mass).all()


def test_shared_keys_read_as_if_they_were_repeated():
    shared = record("peaky", 30, heads=4, key=torch.randn(2, 30, 32))
    repeated = replace(shared, key=shared.key.repeat_interleave(2, 0))
    assert torch.allclose(focus(shared).entropy, focus(repeated).entropy)
    assert torch.equal(focus(shared).logit_max, focus(repeated).logit_max)


def test_blocks_of_rows_do_not_show_in_the_reading():
    long = record("local", 300, heads=1)
    matrix = attention(long)[0]
    found = focus(long, dtype=DOUBLE)
    relative = torch.special.entr(matrix).sum(-1)[1:] / torch.arange(2.0, 301.0).double().log()
    assert found.entropy.item() == pytest.approx(float(relative.mean()), rel=1e-7)


def test_nan_reads_nan_in_its_head_alone():
    attended = record("init", 30)
    attended.query[1, 4] = torch.nan
    found = focus(attended)
    assert found.entropy.isnan().tolist() == [False, True, False]
    assert found.logit_max.isnan().tolist() == [False, True, False]


def test_rows_hold_every_declared_column():
    measure = MEASURES[0]
    none = torch.empty(0, dtype=torch.long)
    layer = Layer(
        sequence=2, layer=1, tokens=none, stream=torch.empty(0, 4), attention=record("sink", 20)
    )
    rows = list(measure.read(layer, MeasureContext(options=measure.options)))
    assert [row["head"] for row in rows] == [0, 1, 2]
    assert set(rows[0]) == {*measure.per, *measure.columns}


@pytest.mark.parametrize(
    ("family", "implementation", "changes", "told"),
    [
        ("bloom", None, {}, False),
        ("mpt", None, {}, False),
        # The same model hands over its queries and keys to a fused kernel.
        ("falcon", "eager", {"alibi": True}, False),
        ("falcon", "sdpa", {"alibi": True}, True),
        ("gptj", None, {}, True),  # scores alone, without a bias
    ],
)
def test_scores_that_hold_a_bias_by_position_are_not_told(family, implementation, changes, told):
    model = recipe.build(family, implementation, changes)
    found = readings(subject(model), [torch.arange(2, 26)], resolve(["attention"]))
    rows = found.rows["attention"]
    assert rows and all(0 <= row["entropy"] <= 1 for row in rows)
    for row in rows:
        assert (row["logit_max"] >= 0) == (row["logit_range"] >= 0) == told
    notes = " ".join(found.notes.get("attention", ()))
    assert ("cannot be told from the bias" in notes) != told
