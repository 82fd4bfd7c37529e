"""The PanGu-pi family: what its members share with each other and with the Llama block."""

import pytest
import torch

from layerlab.model.cost.cost import account
from layerlab.model.design import design
from layerlab.variants.models.pangu import VARIANTS
from layerlab.variants.registry import home, variant, variants
from tests.model.small import small, tokens

NAMES = [one.name for one in VARIANTS]
STARTS = [one.name for one in VARIANTS if one.start == "identity"]


def test_every_member_of_the_row_is_there():
    expected = {"pangu-pi", "pangu-pi-no-siaf", "pangu-pi-no-as", "scaled-identity"}
    expected |= {f"siaf-{n}" for n in (1, 2, 3, 4)} | {f"as-{r}" for r in (1, 4, 16, 32, 64)}
    assert {name for name in variants() if home(name).endswith("pangu")} == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_the_source_leaves_open(name):
    one = variant(name)
    assert one.source.startswith("pangu23") and one.unsaid and one.equation and one.about


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", STARTS)
def test_it_starts_as_the_llama_block_to_the_bit(name, dtype):
    x = tokens()
    one, llama = small(name, dtype=dtype), small("llama", dtype=dtype)
    assert torch.equal(one(x).logits, llama(x).logits)
    shared = llama.state_dict()
    assert all(torch.equal(one.state_dict()[key], value) for key, value in shared.items())


def test_one_term_is_the_llama_block_itself():
    one, llama = small("siaf-1").state_dict(), small("llama").state_dict()
    assert list(one) == list(llama)
    assert all(torch.equal(one[key], llama[key]) for key in llama)


def test_the_scaled_identity_does_not_start_as_the_llama_block():
    x = tokens()
    assert STARTS == [name for name in NAMES if name != "scaled-identity"]
    assert not torch.allclose(small("scaled-identity")(x).logits, small("llama")(x).logits)


def test_two_names_of_one_block_are_one_block():
    assert variant("pangu-pi-no-siaf").spec == variant("as-32").spec
    assert variant("pangu-pi-no-as").spec == variant("siaf-2").spec


def test_the_modules_add_what_the_source_counts():
    shape = design("pangu-pi-7b").shape
    width, layers, inner = shape.width, shape.layers, shape.inner
    plain, full = (account(variant(name).spec, shape) for name in ("llama", "pangu-pi"))
    series = account(variant("siaf-2").spec, shape)
    assert full.scalars - plain.scalars == series.scalars - plain.scalars == layers * 4 * inner
    assert full.blocks - plain.blocks == layers * 2 * width * width // 32
    assert series.forward == plain.forward
    assert full.forward - plain.forward == layers * 4 * width * width // 32


def test_a_matrix_for_every_term_would_not_match_in_parameters():
    """Why our reading of the series is one of numbers per channel, not of further matrices."""
    shape, spec = design("pangu-pi-7b").shape, variant("pangu-pi").spec
    literal = spec.with_block(ffn=spec.block.ffn.with_options(form="multi-projection"))
    llama = account(variant("llama").spec, design("llama-7b").shape).parameters
    assert account(literal, shape).parameters / llama > 1.19
