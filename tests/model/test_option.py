"""Options of a spec: in any order, of any place, and each mistake answered in one line."""

import itertools

import pytest

from layerlab import UserError
from layerlab.blocks.spec import Spec
from layerlab.model.build import build
from layerlab.model.design import design, seed_of
from layerlab.model.option import with_options
from layerlab.model.typed_options import parse_options
from layerlab.variants.registry import variant, variants
from tests.model.small import SIZES
from tests.support import refused

DIGITS = 10**400


def changed(name: str, **options: object) -> Spec:
    return with_options(variant(name).spec, options)


def refusal(name: str, **options: object) -> str:
    said = refused.refusal(changed, name, **options)
    assert len(said) < 600
    return said


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("siaf-2", {"activations": ["silu", "relu", "tanh"], "n": 3}),
        ("as-32", {"form": "full", "T": 2, "initial": "normal"}),
        ("llama", {"ffn": "mlp", "ffn.activation": "relu2", "ffn.bias": False}),
        ("llama", {"norm": "layer", "norm.epsilon": 1e-3, "final_norm": "rms"}),
        ("siaf-2", {"stack.position": "none", "position": "product", "head": "tied"}),
    ],
)
def test_the_order_of_options_makes_no_difference(name, options):
    orders = itertools.permutations(options.items())
    assert len({changed(name, **dict(order)) for order in orders}) == 1


@pytest.mark.parametrize("spelt", [{"stack.position": "none"}, {"stack": {"position": "none"}}])
def test_the_stack_has_a_spelling_of_its_own(spelt):
    spec = changed("siaf-2", **spelt)
    assert spec.stack.position == "none" and spec.block == variant("siaf-2").spec.block
    assert not build("siaf-2", **SIZES, **spelt).model.rotary_emb


def test_so_has_the_block():
    for spelt in ({"block.placement": "post"}, {"block": {"placement": "post"}}):
        assert changed("llama", **spelt).block.placement == "post"
    assert changed("llama", **{"block.norm": "layer"}) == changed("llama", norm="layer")
    assert changed("llama", block={"ffn": {"bias": True}}) == changed("llama", **{"ffn.bias": True})
    assert changed("as-32", form="circulant", block=8).block.shortcut.given()["block"] == 8


def test_what_a_part_and_the_stack_both_have_is_told_apart_by_its_value_or_asked():
    assert changed("siaf-2", position="product").block.ffn.given()["position"] == "product"
    said = refusal("siaf-2", position="none")
    assert "position is an option of ffn and stack; type ffn.position=... or stack.pos" in said
    assert said.endswith("(in Python: stack={'position': ...})")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stack.depth": 3}, "no option or size is called 'stack.depth' here; "),
        ({"stack": 3}, "stack is 3; expected a dict of its fields: type stack={'position'"),
        ({"residual": {"name": "history"}}, "residual got a dict with a name in it, and a dict"),
        ({"residual": {"self": 1}}, "residual part 'plain' has no option 'self'"),
        ({"embedding_norm": None}, "embedding_norm is None; expected the name of a norm part"),
        (
            {"attention": 3},
            "expected the name of a attention part, or a dict of its options: "
            "type attention='softmax'",
        ),
        ({"norm.epsilon": -DIGITS}, "option epsilon of norm part 'rms' got -1000"),
        ({"norm.epsilon": DIGITS**20}, "got a number of thousands of digits; expected"),
        ({"n" * 999: 1}, "no option or size is called 'nnn"),
        ({"head": "x" * 999}, "head is 'xxx"),
        ({"dropout": DIGITS}, "dropout is 1000"),
    ],
)
def test_a_mistake_is_answered_in_one_short_line(options, said):
    assert said in refusal("llama", **options)


def test_an_empty_slot_is_no_misspelling():
    said = refusal("llama", attention="none")
    assert "no attention part is called 'none'; known: " in said and "did you mean" not in said


@pytest.mark.parametrize("text", ["n=" + "9" * 400 + "/3", "n=" + "(" * 9999, "n=" + "9" * 5000])
def test_what_python_would_choke_on_is_a_text(text):
    assert parse_options([text])["n"] == text.removeprefix("n=")


@pytest.mark.parametrize("seed", ["x", None, 1.5, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(UserError, match=r"; expected a whole number as a seed: type seed=0$"):
        seed_of(seed)


@pytest.mark.parametrize("name", [3, None, ["llama"]])
def test_a_variant_is_checked_by_its_name(name):
    with pytest.raises(UserError, match=r"no variant is called .* type: layerlab variants"):
        variant(name)


@pytest.mark.parametrize("size", ["vocab", "layers", "width", "heads", "context", "inner"])
def test_a_size_beyond_every_model_is_refused(size):
    with pytest.raises(
        UserError, match=rf"{size} is 10+\.*0*, more than any model has; expected at"
    ):
        design("llama", sizes={**SIZES, size: 10**13})
    with pytest.raises(UserError, match="more than any model has"):
        design("llama", sizes={**SIZES, size: DIGITS})


def test_layers_are_as_many_as_can_be_accounted_for_while_one_waits():
    assert design("llama", sizes={**SIZES, "layers": 1000}).shape.layers == 1000
    with pytest.raises(UserError, match="layers is 1001, more than any model has; expected at"):
        design("llama", sizes={**SIZES, "layers": 1001})


def test_a_share_of_the_width_is_rounded_up():
    assert design("llama", sizes={**SIZES, "inner": 1e-9}).shape.inner == 16


def test_a_variant_named_like_a_preset_is_refused(monkeypatch):
    known = {**variants(), "llama-7b": variant("llama")}
    monkeypatch.setattr("layerlab.model.design.variants", lambda: known)
    monkeypatch.setattr("layerlab.model.design.home", lambda name: "mine.py")
    said = "'llama-7b' is a preset, and mine.py has a variant of this name; give the variant"
    with pytest.raises(UserError, match=said):
        design("llama-7b")


def test_a_sum_of_two_terms_is_written_out():
    written = {name: one.equation for name, one in variants().items()}
    assert not [name for name, text in written.items() if "2..2" in text]
    assert "SiLU(a_2 z + b_2) - SiLU(b_2)" in written["siaf-2"]
    assert "sum over i = 2..3 of" in written["siaf-3"]
