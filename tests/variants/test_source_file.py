"""A file from outside the package beside what a model was saved with."""

import json

import pytest

from layerlab.plugins import load
from layerlab.variants.template import write_template
from tests.support.refused import refuses


@pytest.mark.parametrize("digest", [5, None, ["ab"], "ab" * 32])
def test_a_hash_that_is_none_refuses_the_file_in_one_line(digest, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"files": {"my_idea.py": digest}}))
    file = write_template(tmp_path / "my_idea.py")
    refuses(r"was saved with .*\.\.\. of that name; nothing was run", load, file, [str(tmp_path)])
