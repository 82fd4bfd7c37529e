"""Recipe files as editors write them."""

import codecs

from layerlab.recipes.training import load_recipe


def test_a_file_may_begin_with_a_mark_of_its_encoding_and_have_ends_of_lines_of_windows(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_bytes(codecs.BOM_UTF8 + b"[train]\r\nmax_steps = 4\r\n")
    assert load_recipe(file).train.max_steps == 4
