"""Condition numbers of a model's own parts, against dense Jacobians of its own modules."""

import copy

import pytest
import torch

from layerlab.measures.quantities.low_precision.condition import components, mixed, normwise
from layerlab.measures.runner import readings
from layerlab.measures.support.rounding_theory import Theory, theory
from layerlab.numerics.theory import condition_numbers
from layerlab.numerics.theory.modules import TheoryAttention
from layerlab.plugins import resolve
from layerlab.records.layer_names import EMBEDDING
from tests.families import recipe
from tests.measures.asked import subject
from tests.measures.family import traced

TOKENS = torch.arange(2, 18)
PARTS = [
    *("attention norm", "scores", "softmax", "attention", "attention sum"),
    *("feed-forward norm", "feed-forward", "feed-forward sum"),
]


def measured(model, name="condition"):
    return readings(subject(model), [TOKENS], resolve([name]))


@pytest.fixture(scope="module")
def found(tiny):
    model = tiny("llama")
    return model, measured(model)


@pytest.mark.full
def test_every_part_of_a_llama_is_recognized_and_none_is_refused(found):
    _, read = found
    rows = read.rows["condition"]
    assert [(row["layer"], row["component"]) for row in rows] == [
        (layer, part) for layer in (0, 1) for part in PARTS
    ]
    assert "condition" not in read.notes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parts_are_recognized_where_features_are_stored_in_16_bits(tiny, dtype):
    model = tiny("llama").to(dtype)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(30)  # what a block adds is small beside it
        for block in model.model.layers:
            block.mlp.gate_proj.weight.mul_(0.3)  # where SiLU and GELU are close
    for layer in traced(model, TOKENS.tolist()):
        found = theory(layer, model)
        assert found is not None and found.block().feedforward.activation == "silu"


@pytest.mark.full
def test_numbers_of_the_first_norm_and_feedforward_are_those_of_dense_jacobians(found):
    model, read = found
    block, seen = model.model.layers[0], {}
    for name in ("input_layernorm", "mlp"):
        getattr(block, name).register_forward_pre_hook(
            lambda module, args, name=name: seen.__setitem__(name, args[0][0].detach())
        )
    with torch.no_grad():
        model(input_ids=TOKENS[None])
    rows = {row["component"]: row for row in read.rows["condition"] if row["layer"] == 0}
    for name, component in (("input_layernorm", "attention norm"), ("mlp", "feed-forward")):
        wide, sizes = copy.deepcopy(getattr(block, name)).double(), []
        for x in seen[name].double():
            jacobian = torch.autograd.functional.jacobian(wide, x[None])[0, :, 0]
            value = wide(x[None])[0].detach()
            sizes.append(condition_numbers.normwise(jacobian, x, value))
            # In closed form: exact of a norm, from above of a feed-forward layer.
            exact = float(condition_numbers.componentwise(jacobian, x, value))
            assert exact <= rows[component]["worst"] * (1 + 1e-3)
        # Norms of transformers compute in float32; power steps come from below.
        wanted = float(torch.stack(sizes).median())
        assert 0.98 * wanted <= rows[component]["normwise"] <= wanted * (1 + 1e-3)
        assert 0 < rows[component]["mixed"] <= rows[component]["worst"]


def test_power_steps_and_sampled_jacobians_meet_a_matrix():
    generator = torch.Generator().manual_seed(0)
    matrix, x = (torch.randn(9, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    matrix = torch.diag(2.0 ** -torch.arange(9, dtype=torch.float64)) @ torch.linalg.qr(matrix).Q
    values = x @ matrix.mT
    wanted = torch.linalg.matrix_norm(matrix, 2) * x.norm(dim=-1) / values.norm(dim=-1)
    assert normwise(lambda v: v @ matrix.mT, x, alone=True) == pytest.approx(
        float(wanted.median()), rel=1e-6
    )
    whole = torch.linalg.matrix_norm(matrix, 2) * x.norm() / values.norm()
    assert normwise(lambda v: v @ matrix.mT, x, alone=False) == pytest.approx(float(whole))
    rows = x[:: -(-9 // 4)]
    reach = (rows.abs() @ matrix.abs().mT).amax(-1) / (rows @ matrix.mT).abs().amax(-1)
    assert mixed(lambda v: v @ matrix.mT, x) == pytest.approx(float(reach.median()))


def numbers(f, x):
    jacobian, value = torch.func.jacrev(f)(x), f(x)
    kinds = (condition_numbers.componentwise, condition_numbers.normwise, condition_numbers.mixed)
    return torch.stack([kind(jacobian, x, value) for kind in kinds])


def test_numbers_of_the_softmax_and_of_a_sum_are_those_of_dense_jacobians():
    draw = torch.Generator().manual_seed(0)
    x, added = torch.randn(2, 5, 6, generator=draw, dtype=torch.float64)
    query, key, value = torch.randn(3, 2, 3, 6, generator=draw, dtype=torch.float64)
    parts = TheoryAttention(query=query, key=key, value=value, scale=0.5)
    read = dict(components(Theory(entered=x, attended=added, attention_input=x, attention=parts)))
    scores = torch.stack([parts.scores(x, head) for head in range(2)])
    rows = [
        [numbers(lambda s: s.softmax(0), s[row, : row + 1]) for s in scores] for row in range(5)
    ]
    both = torch.cat([x, added], 1)
    sums = [numbers(lambda pair: pair.view(2, 6).sum(0), pair) for pair in both]
    wanted = {"softmax": torch.stack([torch.stack(row).amax(0) for row in rows])}
    wanted["attention sum"] = torch.stack(sums)
    for name, each in wanted.items():
        torch.testing.assert_close(read[name].componentwise, each[:, 0])
        assert read[name].normwise == pytest.approx(float(each[:, 1].median()), rel=1e-3)
        assert read[name].mixed == pytest.approx(float(each[:, 2].median()))


def test_a_post_norm_model_says_which_norm_is_not_there(tiny):
    read = measured(tiny("openai-gpt"))
    parts = {row["component"] for row in read.rows["condition"]}
    assert {"attention", "feed-forward", "feed-forward sum"} <= parts
    assert "attention norm" not in parts
    assert any("no norm in front of its attention" in note for note in read.notes["condition"])


@pytest.mark.full
def test_the_a_priori_bound_is_there_behind_every_block_and_above_what_is_observed(tiny):
    rows = measured(tiny("llama"), "rounding").rows["rounding"]
    assert [row["layer"] for row in rows if row["apriori"] != row["apriori"]] == [EMBEDDING]
    assert all(row["apriori"] > row["worst"] for row in rows[1:])


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("granite", {"residual_multiplier": 0.22}),  # branches are scaled
        ("gemma2", {"attn_logit_softcapping": None}),  # branches are normed after
    ],
)
def test_no_a_priori_bound_is_given_for_a_block_that_adds_up_otherwise(family, changes):
    found = measured(recipe.build(family, changes=changes), "rounding")
    assert all(row["apriori"] != row["apriori"] for row in found.rows["rounding"])
    (note,) = (one for one in found.notes["rounding"] if one.startswith("a-priori bound"))
    assert note == (
        "a-priori bound: not applicable from layer 0 on, because it is no sum of the stream "
        "with what its parts give"
    )
