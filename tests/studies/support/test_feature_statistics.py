"""A dimension is read off as many tokens as show it, or a reader is told that it is not."""

import pytest

from layerlab.studies.engine.runner import study
from layerlab.studies.support.feature_statistics import warn_of_few
from layerlab.studies.support.passages import get_model
from tests.studies.small import made

WORDS = "512 tokens, and no more directions than tokens can show: for a width of 192 of"


def test_a_width_of_a_quarter_of_the_tokens_is_not_too_wide():
    assert warn_of_few(512, {"one": 64, "other": 128}) == []
    (told,) = warn_of_few(512, {"one": 128, "other": 129, "third": 2048})
    assert "for a width of 129 of other and 2,048 of third they are too few" in told


@pytest.mark.full
def test_the_dimension_of_a_wide_model_of_a_user_is_said_to_be_cut_off():
    model = made("gpt2", n_embd=192)
    quick = {"draws": 4, "layers": 2, "width": 16, "progress": False, "threads": 1, "fast": True}
    given = {"model": model, "tokenizer": get_model("llama").tokenizer}
    wide, own = (study("collapse-depth", **one, **quick).to_dict() for one in (given, {}))
    assert [WORDS in one for one in wide["remarks"]].count(True) == 1
    assert not any(WORDS in one for one in own["remarks"])
