"""Condition numbers by experiment: known maps give known numbers, a false bound is found."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from layerlab.numerics.theory import condition_numbers
from layerlab.numerics.theory.modules import TheoryNorm
from layerlab.studies.budzinskiy25.section3_condition import (
    ROWS,
    describe_parts,
    judge_never,
    judge_norms,
    judge_usual,
    medians,
    norm_modules,
)
from layerlab.studies.budzinskiy25.support.amplification import (
    COLUMNS,
    EXACT,
    FORM,
    TYPICAL,
    UNIFORM,
    WORST,
    Module,
    measure,
)
from tests.studies.small import context


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def linear(normwise=False):
    matrix = torch.randn(3, 5, generator=generator(1), dtype=torch.float64)
    x = torch.randn(5, generator=generator(2), dtype=torch.float64)
    form = condition_numbers.affine(x, matrix)
    none = torch.tensor(torch.nan)
    return Module(
        name="scores", f=lambda v: matrix @ v, x=x, form=form, uniform=none, normwise=normwise
    )


def test_of_a_linear_map_the_worst_signs_attain_the_closed_form():
    found = measure(linear(), generator())
    assert found[WORST].item() == pytest.approx(found[FORM].item(), rel=1e-6)
    assert found[EXACT].item() == pytest.approx(found[FORM].item(), rel=1e-12)
    assert found[TYPICAL] < found[WORST]


def test_a_power_multiplies_relative_errors_by_its_exponent():
    three = torch.tensor(3.0, dtype=torch.float64)
    x = torch.tensor([2.0, -5.0], dtype=torch.float64)
    cube = Module(name="softmax", f=lambda v: v**3, x=x, form=three, uniform=three)
    assert np.allclose(measure(cube, generator())[[EXACT, WORST, TYPICAL]], 3, rtol=1e-6)


def test_a_rotation_keeps_lengths_of_errors():
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    found = Module(
        name="rotary positions",
        f=lambda v: (v @ turn.T)[-1],
        x=x,
        form=one,
        uniform=one,
        normwise=True,
    )
    assert np.allclose(measure(found, generator())[[EXACT, WORST]], 1)


def test_a_layer_norm_near_a_constant_is_as_bad_as_its_uniform_form_allows():
    x = 1 + 1e-3 * torch.randn(16, generator=generator(3), dtype=torch.float64)
    plain = next(norm_modules(TheoryNorm(kind="layer"), x))
    found = measure(plain, generator())
    assert 500 < found[WORST] <= found[FORM] * (1 + 1e-4) < found[UNIFORM]


def test_a_form_that_is_too_small_is_found():
    true = linear()
    for form, word in ((true.form, "holds"), (true.form / 2, "fails")):
        every = np.full((4, 1, len(ROWS), len(COLUMNS)), np.nan)
        every[:, 0, 0] = measure(replace(true, form=form), generator()).numpy()
        assert judge_never(every).word == word


@pytest.mark.parametrize(("middle", "word"), [(9.0, "holds"), (2.0, "not decided"), (1.0, "fails")])
def test_layer_norm_is_judged_where_its_interval_is_on_one_side_of_two(middle, word):
    every = np.full((12, 3, len(ROWS), len(COLUMNS)), np.nan)
    every[:, 0, ROWS.index("RMS norm"), EXACT] = 1.9
    every[:, 1:, ROWS.index("layer norm"), EXACT] = (middle * np.linspace(0.9, 1.1, 12))[:, None]
    found = judge_norms(every, 0)
    assert found.word == word
    assert "layer norm (the worse of two models):" in found.said
    every[:, 2] = np.nan
    assert "layer norm (one model):" in judge_norms(every, 0).said
    every[:, 0, ROWS.index("RMS norm"), EXACT] = 2.1
    assert judge_norms(every, 0).word == "fails"


def test_every_part_that_was_not_read_is_named():
    every = np.full((4, 2, len(ROWS), len(COLUMNS)), np.nan)
    for name in ("RMS norm", "attention", "SwiGLU"):
        every[:, 0, ROWS.index(name)] = 1.0
    # Some blocks of the other have another feed-forward.
    every[:2, 1, ROWS.index("perceptron")] = 2.0
    told = describe_parts(every, context(models=("a", "b"), given={"a": 1}))
    assert [one.split(": ")[1] for one in told] == [
        f"{part}, in b." for part in ("norms", "attention", "feed-forward")
    ]
    found = medians(every, WORST, FORM, "ab", 0)
    assert found["b", "perceptron"].value == 1 and "nan" not in judge_usual(every, "ab", 0).said


def test_a_feed_forward_that_was_not_read_is_said_to_be_so():
    every = np.full((12, 1, len(ROWS), len(COLUMNS)), np.nan)
    every[:, 0, ROWS.index("RMS norm")] = 1.0
    assert judge_usual(every, ("a",), 0).said.endswith("feed-forward not read")
