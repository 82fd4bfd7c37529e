"""The claims of spectral25, "Deep Dive into Transformer Architecture", on attention, one by one.

A claim that was found false stays here, refuted by the number that refutes it.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.measures.quantities.weights.querykey import prenorm_bound
from tests.numerics.draw import gaussian

DOUBLE = torch.float64
EPS = torch.finfo(DOUBLE).eps
KINDS = ("gaussian", "first key", "own key", "flat", "alternating")


def softmax(scores, causal):
    square = torch.ones(scores.shape[-2:], dtype=torch.bool)
    return torch.softmax(scores.masked_fill(~square.tril(), -torch.inf) if causal else scores, -1)


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2)


def scores_within(kind, tokens, limit, seed):
    """Scores with |s| <= limit: random ones, and ones that pile all they can on few columns."""
    if kind == "gaussian":
        scores = gaussian(tokens, tokens, seed=seed)
        return limit * scores / scores.abs().max()
    low = torch.full((tokens, tokens), -limit, dtype=DOUBLE)
    if kind == "first key":
        low[:, 0] = limit
    elif kind == "own key":
        low.fill_diagonal_(limit)
    elif kind == "alternating":
        low[:, ::2] = limit
    else:
        low.zero_()
    return low


bounded = st.tuples(
    st.sampled_from(KINDS),
    st.integers(1, 40),
    st.sampled_from([0.0, 1e-3, 0.1, 1.0, 5.0, 50.0]),
    st.integers(0, 10**6),
)


def printed(tokens, limit):
    """The last equation of section 2.2, as it stands."""
    return math.sqrt(tokens / (1 + (tokens - 1) * math.exp(-2 * limit)))


def corrected(tokens, limit):
    """The same argument with the i keys that row i has under a causal mask."""
    return math.sqrt(math.fsum(1 / (1 + i * math.exp(-2 * limit)) for i in range(tokens)))


@given(bounded, st.booleans())
@settings(max_examples=150, deadline=None)
def test_equations_6_to_8_hold(drawn, causal):
    kind, tokens, limit, seed = drawn
    matrix = softmax(scores_within(kind, tokens, limit, seed), causal)
    above = 1 + 8 * tokens * EPS
    column = matrix.sum(0).max().sqrt()
    assert 1 <= norm(matrix) * above
    assert norm(matrix) <= column * above
    assert column <= math.sqrt(tokens) * above


def test_equation_7_is_attained_when_every_row_picks_the_same_column():
    matrix = torch.zeros(30, 30, dtype=DOUBLE)
    matrix[:, 4] = 1
    assert norm(matrix).item() == pytest.approx(math.sqrt(30), rel=1e-14)


@given(st.integers(2, 12), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_norm_is_one_for_doubly_stochastic_attention_and_above_for_any_other(tokens, seed):
    scores = gaussian(tokens, tokens, seed=seed)
    assert norm(softmax(scores, causal=False)) > 1
    assert norm(softmax(scores, causal=True)) > 1
    doubly = (torch.eye(tokens, dtype=DOUBLE) + torch.eye(tokens, dtype=DOUBLE).roll(1, 0)) / 2
    assert norm(doubly).item() == pytest.approx(1, rel=1e-12)


@given(bounded)
@settings(max_examples=150, deadline=None)
def test_the_prenorm_bound_holds_without_a_mask(drawn):
    kind, tokens, limit, seed = drawn
    matrix = softmax(scores_within(kind, tokens, limit, seed), causal=False)
    assert norm(matrix) <= printed(tokens, limit) * (1 + 8 * tokens * EPS)


def test_refuted_the_prenorm_bound_as_printed_is_below_the_norm_of_causal_attention():
    # A pre-norm head with Gamma = 1 and M = 0.1: the bound promises 1.104, the head has 1.646.
    tokens, width = 128, 32
    stream = torch.nn.functional.layer_norm(gaussian(tokens, width, seed=1), (width,))
    query, key = gaussian(width, width, seed=2), gaussian(width, width, seed=3)
    limit = 0.1
    query *= limit / (norm(query) * norm(key) * math.sqrt(width))
    scores = (stream @ query) @ (stream @ key).T / math.sqrt(width)
    assert scores.abs().max() <= limit
    measured = norm(softmax(scores, causal=True)).item()
    assert printed(tokens, limit) < 1.11
    assert measured > 1.6
    assert measured <= corrected(tokens, limit)


@given(bounded)
@settings(max_examples=150, deadline=None)
def test_the_corrected_prenorm_bound_holds_under_a_causal_mask(drawn):
    kind, tokens, limit, seed = drawn
    matrix = softmax(scores_within(kind, tokens, limit, seed), causal=True)
    assert norm(matrix) <= corrected(tokens, limit) * (1 + 8 * tokens * EPS)


@pytest.mark.parametrize("tokens", [1, 2, 19, 128])
@pytest.mark.parametrize("limit", [0.0, 0.1, 2.0, 40.0])
def test_the_bound_of_the_report_is_the_corrected_one(tokens, limit):
    reported = prenorm_bound(torch.tensor([limit], dtype=DOUBLE), tokens).item()
    assert reported == pytest.approx(corrected(tokens, limit), rel=1e-12)
    unmasked = prenorm_bound(torch.tensor([limit], dtype=DOUBLE), tokens, causal=False).item()
    assert unmasked == pytest.approx(printed(tokens, limit), rel=1e-12)


def test_the_bound_says_nothing_at_the_size_of_gpt2():
    # Weights N(0, 0.02^2), as GPT-2 starts: M is near 48, and both forms are sqrt(n) to 12 digits.
    query, key = (0.02 * gaussian(768, 64, seed=seed) for seed in (1, 2))
    limit = (norm(query) * norm(key) * 768 / math.sqrt(64)).item()
    assert limit > 20
    for bound in (printed(128, limit), corrected(128, limit)):
        assert bound == pytest.approx(math.sqrt(128), rel=1e-12)


def limits(front, attention, heads):
    """M of every head behind a LayerNorm, with its shift, the biases and the scale 1/sqrt(d_h)."""
    width = len(front.weight)
    reach = front.weight.abs().max() * math.sqrt(width) + front.bias.norm()
    weights = attention.c_attn.weight.view(width, 3, heads, -1).permute(1, 2, 0, 3)
    biases = attention.c_attn.bias.view(3, heads, -1)
    query, key = (
        reach * torch.linalg.matrix_norm(weights[part], 2) + biases[part].norm(dim=-1)
        for part in (0, 1)
    )
    return (query * key / math.sqrt(width / heads)).tolist()


def fronts(model):
    """The LayerNorm that each attention reads: in GPT-1 it ends the block before."""
    blocks = model.transformer.h
    if model.config.model_type == "gpt2":
        return [block.ln_1 for block in blocks]
    return [None, *(block.ln_2 for block in blocks)][: len(blocks)]


@pytest.mark.parametrize("family", ["gpt2", "openai-gpt"])
@pytest.mark.parametrize("sharpness", [1.0, 20.0, 200.0])
def test_the_same_bound_holds_behind_the_layer_norms_of_pre_and_of_post_norm_blocks(
    tiny, family, sharpness
):
    model = tiny(family, n_layer=4, attn_implementation="eager")
    tokens = torch.arange(24)[None]
    with torch.no_grad():
        for front, block in zip(fronts(model), model.transformer.h, strict=True):
            block.attn.c_attn.weight *= sharpness
            block.attn.c_attn.bias += 0.1 * sharpness * gaussian(48, seed=1).float()
            if front is not None:
                front.bias += 0.1
        matrices = model(tokens, output_attentions=True).attentions
        checked = 0
        for front, block, matrix in zip(fronts(model), model.transformer.h, matrices, strict=True):
            if front is None:
                continue
            for head, limit in enumerate(limits(front, block.attn, 2)):
                assert norm(matrix[0, head].double()) <= corrected(24, limit) * (1 + 1e-6)
                checked += 1
    assert checked == (8 if family == "gpt2" else 6)


def test_refuted_the_bound_does_not_separate_pre_norm_from_post_norm(tiny):
    # With equal weights the formula gives both placements the same number, so it cannot say which
    # is the better one. The post-norm block has it from its second layer on.
    pre, post = tiny("gpt2"), tiny("openai-gpt")
    with torch.no_grad():
        for ours, theirs in zip(pre.transformer.h, post.transformer.h, strict=True):
            theirs.attn.c_attn.load_state_dict(ours.attn.c_attn.state_dict())
        first, second = (limits(fronts(m)[1], m.transformer.h[1].attn, 2) for m in (pre, post))
    assert first == second


@pytest.mark.full
def test_refuted_products_of_attention_do_not_explode():
    # Section 2.1: "repeatedly multiplied, norms above 1 explode". The product is row-stochastic.
    tokens, depth = 128, 48
    product, bound = torch.eye(tokens, dtype=DOUBLE), 1.0
    for layer in range(depth):
        matrix = softmax(gaussian(tokens, tokens, seed=layer), causal=True)
        product, bound = matrix @ product, bound * norm(matrix).item()
        assert 1 <= norm(product) * (1 + 1e-12)
        assert norm(product) <= math.sqrt(tokens) * (1 + 1e-12)
    assert bound > 1e6 * math.sqrt(tokens)
    assert torch.allclose(product.sum(-1), torch.ones(tokens, dtype=DOUBLE), rtol=1e-12)


@pytest.mark.parametrize("width", [4, 64, 768])
def test_refuted_beside_equation_9_layer_norm_projects_onto_radius_sqrt_d_and_not_one(width):
    stream = torch.nn.functional.layer_norm(3 + 10 * gaussian(50, width, seed=5), (width,))
    # eps = 1e-5 beside a variance near 100 takes off at most 1e-5 / 50.
    assert torch.allclose(stream.norm(dim=-1), torch.tensor(width, dtype=DOUBLE).sqrt(), rtol=2e-5)
    gain = gaussian(width, seed=6)
    assert ((stream * gain).norm(dim=-1) <= gain.abs().max() * math.sqrt(width)).all()


@pytest.mark.parametrize("gain", [1.0, 2.0, 5.0])
def test_refuted_scores_do_not_stay_of_order_one(gain):
    # One token along the top singular vectors of unit-norm W_Q and W_K attains M, which grows with
    # gain^2 and with d: 96 gain^2 at the width of GPT-2.
    width, head_width = 768, 64
    token = torch.ones(width, dtype=DOUBLE)
    token[::2] = -1
    stream = torch.nn.functional.layer_norm(token, (width,), eps=0.0) * gain
    projection = torch.zeros(width, head_width, dtype=DOUBLE)
    projection[:, 0] = token / token.norm()
    score = (stream @ projection).square().sum() / math.sqrt(head_width)
    limit = gain**2 * norm(projection) ** 2 * width / math.sqrt(head_width)
    assert score.item() == pytest.approx(limit.item(), rel=1e-12)
    assert score > 95 * gain**2


def test_refuted_the_padded_matrix_of_the_source_script_has_another_norm(tiny):
    # The script pads 12 tokens to 18 and takes the norm of all 18 rows.
    model = tiny("gpt2", attn_implementation="eager")
    text = torch.arange(1, 13)[None]
    padded = torch.cat([text, torch.zeros(1, 6, dtype=torch.long)], 1)
    mask = (torch.arange(18) < 12).long()[None]
    with torch.no_grad():
        alone = model(text, output_attentions=True).attentions[0][0].double()
        script = (
            model(padded, attention_mask=mask, output_attentions=True).attentions[0][0].double()
        )
    rounding = 12 * torch.finfo(torch.float32).eps
    assert torch.allclose(norm(script[:, :12, :12]), norm(alone), rtol=rounding)
    assert (norm(script) > 1.02 * norm(alone)).all()
