"""Cards, pictures, the table and the count behind them."""

import json
from functools import cache

import pytest
from rich.console import Console

import layerlab
from layerlab import UserError
from layerlab.model.cost import cost as accounts
from layerlab.model.cost.cost import account
from layerlab.model.cost.measured_cost import count_operations
from layerlab.model.design import design
from layerlab.model.listing.card import card
from layerlab.model.listing.diagram import picture
from layerlab.model.listing.listing import WIDE, request
from layerlab.model.preset import presets
from layerlab.variants.registry import home, variants
from tests.model.small import SIZES

NAMES = list(variants())


@cache
def everything():
    return request([], sizes={})


def shown(what, width):
    console = Console(width=width, record=True, markup=False, highlight=False, file=None)
    with console.capture() as capture:
        console.print(what.render_costs(width))
    return capture.get()


def test_every_variant_has_a_card():
    cards = layerlab.list_variants()
    assert list(cards) == NAMES
    for name, one in cards.items():
        assert one.name == name and one.home == home(name)
        assert one.equation and one.source and one.about and one.baseline in cards
        assert name in repr(one) and f"{one.parameters:,}" in repr(one)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_every_option_with_its_value_and_whether_it_is_unsaid(name):
    found = design(name, sizes=SIZES)
    settings = {(one.slot, one.name): one for one in card(found).settings}
    for slot in ("norm", "attention", "ffn", "shortcut", "residual"):
        kind = accounts.part(slot, getattr(found.spec.block, slot).name)
        given = kind.given(getattr(found.spec.block, slot).given())
        for option, declared in kind.options.items():
            setting = settings.pop((slot, option))
            assert setting.value == given[option] and setting.unsaid == declared.unsaid
            assert setting.about == declared.about and setting.domain == str(declared.domain)
    assert not settings


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_has_what_the_block_has(name):
    found = design(name, sizes=SIZES)
    text = picture(found.spec, found.shape)
    block = found.spec.block
    assert text.startswith("tokens\n") and text.endswith("\nlogits")
    assert f"attention: {block.attention.name}" in text
    assert (f"ffn: {block.ffn.name}" in text) == (block.ffn.name != "none")
    assert (f"shortcut: {block.shortcut.name}" in text) == (block.shortcut.name != "none")
    assert f"residual: {block.residual.name}" in text
    assert ("final" in text) == (found.spec.stack.final_norm.name != "none")


def drawn(name, **options):
    found = design(name, sizes=SIZES, options=options)
    return picture(found.spec, found.shape).splitlines()


def test_the_norm_is_drawn_where_it_stands():
    def lines(placement):
        return [line for line in drawn("llama", placement=placement) if "norm rms" in line]

    assert all(line.index("norm") < line.index(":") for line in lines("pre")[:2])
    assert all(line.index("norm") > line.index(":") for line in lines("after")[:2])
    assert all(line.count("norm rms") == 2 for line in lines("both")[:2])
    assert all(line.endswith("of the stream") for line in lines("post")[:2])


def test_a_shortcut_is_drawn_beside_attention_and_nothing_skipped_is_said():
    lines = drawn("pangu-pi")
    at = next(index for index, line in enumerate(lines) if "attention:" in line)
    assert "shortcut: augmented" in lines[at + 1] and lines[at + 1].endswith("┤")
    ends = {len(line.split("residual:")[0].rstrip()) for line in lines if "residual:" in line}
    assert len(ends) == 1, "branches come back at one column"
    assert any("nothing is skipped" in line for line in drawn("llama", residual="none"))


def test_what_differs_from_a_default_is_in_the_picture():
    assert any("softmax(bias=qkv)" in line for line in drawn("llama", **{"attention.bias": "qkv"}))
    assert any("dropout 0.1" in line for line in drawn("llama", dropout=0.1))
    assert any("tied to the embedding" in line for line in drawn("llama", head="tied"))
    assert any("the same in all" in line for line in drawn("llama", sharing="blocks"))


@pytest.mark.parametrize("width", [80, 120, 160])
def test_the_table_fits_the_terminal_and_holds_every_number_whole(width):
    text = shown(everything(), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for name in NAMES:
        (line,) = [one for one in text.splitlines() if one.split()[:1] == [name]]
        assert len(line.split()) == (9 if width < WIDE else 13)
    assert ("Not shown in fewer than" in text) == (width < WIDE)


def test_a_table_says_what_does_not_exist_at_these_sizes():
    answer = request([], sizes={"width": 12, "heads": 4})
    assert "llama" in answer.refused and "gpt2" in {one.name for one in answer.cards}
    assert "llama is not here: rotary positions turn" in shown(answer, 200)
    with pytest.raises(UserError, match="layers is 0; expected a whole number"):
        request([], sizes={"layers": 0})


@pytest.mark.parametrize("name", ["pangu-pi", "gpt1", *presets()])
def test_a_page_fits_the_terminal_and_says_it_all(name):
    answer = request([name], sizes={})
    one = answer.cards[0]
    text = shown(answer, 80)
    assert max(map(len, text.splitlines())) <= 80
    flowing = " ".join(text.split())
    assert all(word in flowing for word in one.equation.split())
    assert f"{one.parameters:,}" in text and one.source in flowing
    if one.preset is not None:
        assert "not published" in text and one.preset.source in flowing


def test_everything_is_also_json():
    answer = json.loads(json.dumps(request(["pangu-pi"], sizes=SIZES, by="ffn").to_dict()))
    entry = answer["variants"]["pangu-pi"]
    assert entry["account"]["parameters"] == answer["matches"][0]["found"]
    assert entry["sizes"]["inner"] == answer["matches"][0]["sizes"]["inner"]
    assert {"name", "value", "domain", "about", "unsaid", "slot"} == set(entry["options"][0])
    assert entry["baseline_account"]["parameters"] == answer["matches"][0]["wanted"]


def test_a_card_counts_what_a_cache_keeps_and_says_what_is_not_counted():
    answer = request(["canon"], sizes=SIZES)
    text, entry = shown(answer, 120), answer.to_dict()["variants"]["canon"]
    cached = entry["account"]["cached"]
    assert cached > 0 and entry["baseline_account"]["cached"] == 0
    row = next(line for line in text.splitlines() if "per sequence cached" in line)
    assert f"{cached:,}" in row
    assert "Not counted: activations" in text


def test_matching_needs_a_name():
    for given in ({"names": [], "by": "ffn"}, {"names": ["llama"], "against": "gpt2"}):
        with pytest.raises(UserError, match="--match resizes a variant that is named"):
            request(given.pop("names"), sizes={}, **given)


COUNTED = ("llama", "gpt2", "pangu-pi", "history-7", "canon", "attention-only", "mhc")


@pytest.mark.parametrize("name", (*COUNTED, "hyper-connections", "attention-residuals-block"))
def test_counting_a_model_without_memory_gives_what_the_formulas_say(name):
    found = design(name, sizes=SIZES)
    said = vars(account(found.spec, found.shape))
    seen = count_operations(found.spec, found.shape)
    for field in ("embedding", "head", "forward", "carry", "cached"):
        assert seen[field] == said[field], field
    assert seen["blocks"] + seen["scalars"] == said["blocks"] + said["scalars"]


@pytest.mark.full
def test_where_a_part_has_no_formula_the_model_is_counted_and_that_is_said(monkeypatch):
    found = design("llama", sizes=SIZES)
    said = account(found.spec, found.shape)
    assert not said.counted
    monkeypatch.setattr(accounts, "part", _without_formula(accounts.part))
    seen = account(found.spec, found.shape)
    assert seen.counted and seen.parameters == said.parameters and seen.forward == said.forward
    text = shown(request(["llama", "gpt2"], sizes=SIZES), 120)
    assert "llama*" in text and "counted on a model without memory" in text
    assert "counted on a model" in shown(request(["llama"], sizes=SIZES), 80)


def _without_formula(find):
    class Silent(find("attention", "softmax")):
        @classmethod
        def cost(cls, width, site, **options):
            return None

    return lambda slot, name: (
        Silent if (slot, name) == ("attention", "softmax") else find(slot, name)
    )
