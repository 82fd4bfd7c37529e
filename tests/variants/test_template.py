"""The file that a variant of one's own starts from."""

from collections.abc import Iterator

import pytest

from layerlab.model.cost.cost import account
from layerlab.model.design import design
from layerlab.plugins import load
from layerlab.variants import registry
from layerlab.variants.template import write_template
from tests.support.refused import refuses


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    registry._ADDED.clear()


@pytest.mark.parametrize("word", ["true", "cost", "choice", "gated"])
def test_a_word_of_python_or_of_an_import_names_a_template_that_loads(word, tmp_path):
    load(write_template(tmp_path / f"{word}_.py"))
    made, base = (design(name, sizes={"width": 32, "heads": 2}) for name in (word, "llama"))
    more = account(made.spec, made.shape).scalars - account(base.spec, base.shape).scalars
    assert more == 32 * made.shape.layers


@pytest.mark.parametrize("word", ["swiglu", "none"])
def test_a_template_takes_no_name_of_a_part(word, tmp_path):
    said = f"an ffn part called '{word}' is there already; give the file another name"
    refuses(said, write_template, tmp_path / f"{word}.py")
    assert not [*tmp_path.iterdir()]


def test_a_template_with_a_blank_in_its_name_says_what_can_be_typed(tmp_path):
    text = write_template(tmp_path / "my idea.py").read_text("utf-8")
    assert "layerlab variants my-idea --load 'my idea.py'" in text
