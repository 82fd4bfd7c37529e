import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerlab.observe.tracing.residual_scale import SLACK, factor
from layerlab.observe.tracing.trace import trace
from tests.families.examination import subject, tokens
from tests.families.recipe import build

EPS = torch.finfo(torch.float32).eps


def drawn(seed, count):
    return torch.randn(count, 12, 6, generator=torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 2**16), scale=st.floats(0.05, 20))
def test_the_constant_of_a_branch_is_found(seed, scale):
    x, branch, noise = drawn(seed, 3)
    total = x + scale * branch
    found = factor(branch, [noise, total], [noise, x], [])
    slack = SLACK * EPS * float(total.abs().max())
    assert abs(found - scale) <= slack * 6**0.5 * 8**0.5 / float(branch[-8:].norm())


def test_a_sum_of_float64_is_seen_in_float64():
    x, branch = torch.randn(2, 6, 5, dtype=torch.float64).unbind()
    assert factor(branch, [x + branch], [x], []) == 1.0


@given(seed=st.integers(0, 2**16))
def test_a_branch_beside_another_one_is_found(seed):
    x, branch, other = drawn(seed, 3)
    assert factor(branch, [x + branch + other], [x], [branch, other]) == 1
    assert factor(branch, [x + branch + other], [x], [branch]) is None


@given(seed=st.integers(0, 2**16))
def test_a_norm_behind_the_sum_hides_the_branch(seed):
    x, branch, _ = drawn(seed, 3)
    total = torch.nn.functional.layer_norm(x + branch, [6])
    assert factor(total, [total], [x], []) is None


def rounded(size=64):
    """A stream in bf16 with a channel far above the others, and two branches."""
    draw = torch.Generator().manual_seed(0)
    x, *branches = torch.randn(3, 12, size, generator=draw)
    x[:, 0] = 500
    return [one.bfloat16() for one in (x, *(0.5 * branch for branch in branches))]


@pytest.mark.parametrize("scale", [0.22, 0.5, 2.0])
def test_a_large_channel_in_bf16_hides_no_factor(scale):
    x, branch, other = rounded()
    middle = x + scale * branch
    total = middle + scale * other
    sums, bases = [total, middle], [x, middle]
    assert factor(branch, sums, bases, [branch, other]) == pytest.approx(scale, rel=0.02)
    assert factor(other, sums, bases, [branch, other]) == pytest.approx(scale, rel=0.02)


def test_a_large_channel_in_bf16_makes_no_factor():
    x, branch, other = rounded()
    assert factor(branch, [x + branch], [x], []) == 1
    assert factor(branch, [x + branch + other], [x], [other]) == 1
    for small in (1e-3 * branch, 1e-6 * branch):
        assert factor(small, [x + small], [x], []) == 1
    assert factor(branch, [x + 3 * other], [x], []) is None


def test_a_factor_near_one_is_found_where_rounding_is_no_reason():
    """Of the 8 units that a sum may be off, it is off by two and a half."""
    size, draw = 100.0, torch.Generator().manual_seed(0)
    x, branch = torch.full((12, 64), size), torch.randint(2, (12, 64), generator=draw) * 2.0 - 1
    unit = SLACK * EPS * (size + 1)
    scale = 1 + 0.3 * unit
    found = factor(branch, [(x.double() + scale * branch).float()], [x], [])
    assert found is not None and abs(found - scale) < 0.1 * unit
    assert factor(branch, [(x.double() + (1 + 0.1 * unit) * branch).float()], [x], []) == 1


def test_what_rounding_hides_of_a_branch_blurs_no_factor():
    draw = torch.Generator().manual_seed(0)
    x, branch = torch.full((12, 1001), 100.0), 1e-5 * torch.randn(12, 1001, generator=draw)
    branch[:, 0] = 10 * SLACK * EPS * 100
    assert factor(branch, [x + 1.05 * branch], [x], []) == pytest.approx(1.05, abs=0.01)


def test_a_branch_that_was_rounded_before_is_seen_in_a_wider_sum():
    x, branch, _ = drawn(0, 3)
    assert factor(branch.bfloat16(), [x + branch], [x], []) == 1


def test_the_last_tokens_all_join():
    x, branch, noise = drawn(0, 3)
    last, one = x + branch, x + branch
    last[:4], one[:11] = noise[:4], noise[:11]
    assert factor(branch, [last], [x], []) == 1 and factor(branch, [one], [x], []) is None


def test_a_branch_of_nothing_joins_nowhere():
    x = torch.ones(4, 6)
    assert factor(torch.zeros(4, 6), [x], [x], []) is None


@pytest.mark.parametrize(
    ("family", "names"),
    [("gpt2", {"attention", "ffn"}), ("openai-gpt", {"attention", "ffn"}), ("bert", set())]
    + [(name, {"attention", "ffn"}) for name in ("granite", "minicpm3", "gptj", "olmo2", "gemma2")],
)
def test_branches_are_those_that_join_the_stream(family, names):
    model, layers = build(family), []
    trace(model, subject(model).stack, [tokens()], layers.append)
    for layer in layers[1:]:
        branches = {n: s.branch for n, s in layer.sublayers.items() if s.branch is not None}
        assert set(branches) == names
        if names and family != "openai-gpt":  # its last norm hides the sum
            total = layer.entered + sum(branches.values())
            # two sums and a product, each rounded
            assert (total - layer.stream).abs().max() <= 6 * EPS * layer.stream.abs().max()
