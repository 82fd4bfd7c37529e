"""`inspect` reads every variant that can be built: its attention is heard and cut into heads."""

import pytest

import layerlab
from layerlab.loading.names import label
from layerlab.observe.architecture.head_weights import project
from layerlab.observe.architecture.structure import anatomy
from layerlab.variants.registry import variants
from tests.model.exempt import bound
from tests.model.small import SIZES, shaken, small, tokens

MEASURES = ("attention",)


@pytest.mark.full
@pytest.mark.parametrize("name", bound("inspection"))
def test_every_layer_is_heard_and_read(name):
    model = shaken(small(name))
    layers = SIZES["layers"]
    found = anatomy(model)
    assert [part.block for part in found.attentions] == list(range(layers))
    assert all(part.interface for part in found.attentions)
    report = layerlab.inspect(model, input_ids=tokens(1, 12), measures=MEASURES, progress=False)
    heard = report.frame("attention")
    assert len(heard) == layers * SIZES["heads"]


@pytest.mark.parametrize("name", bound("projection"))
def test_the_weights_of_every_head_are_found_with_the_norm_in_front(name):
    model = small(name)
    part = anatomy(model).attentions[1]
    block = model.model.layers[1]
    read = project(block, part, config=model.config)
    width, heads = SIZES["width"], SIZES["heads"]
    assert read.query is not None and read.query.shape == (heads, width // heads, width)
    assert read.key is not None and read.key.shape == read.query.shape
    spec = variants()[name].spec
    assert (read.rotary is not None) == (spec.stack.position == "rotary")
    plain = spec.block.norm.name in ("rms", "layer") and spec.block.placement in ("pre", "both")
    assert (read.norm == spec.block.norm.name) if plain else True


def test_an_unsaved_model_is_called_by_its_variant():
    assert label(small("as-4", device="meta")) == "as-4"
