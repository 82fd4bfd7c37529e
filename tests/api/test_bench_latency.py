"""Timing and stages of adaptation as functions: what Python alone can give them."""

from pathlib import Path

import pytest

from layerlab import UserError, bench_latency, change_vocabulary


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch": "3"}, "batch is '3'; expected a whole number"),
        ({"context": 4.5}, "context is 4.5; expected a whole number"),
        ({"repetitions": True}, "repetitions is True; expected a whole number"),
        ({"models": (), "accounting": "fewer-layers", "width": "x"}, "width is 'x'; expected a"),
        ({"models": Path("none")}, "none"),
        ({"models": [Path("none")]}, "none"),
    ],
)
def test_what_no_size_and_no_model_is_is_one_line(given, said):
    with pytest.raises(UserError, match=said):
        bench_latency(**{"models": "llama", "progress": False, **given})


def test_a_size_of_a_vocabulary_may_be_a_number(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("an appeal", encoding="utf-8")
    with pytest.raises(UserError, match="there is no tokenizer 'none'"):
        change_vocabulary("none", text, 8000, tmp_path / "new", progress=False)
    with pytest.raises(UserError, match="cannot read the size '-1'"):
        change_vocabulary("none", text, -1, tmp_path / "new", progress=False)
