"""A shell completes commands, options and what an option may be."""

import pytest
from typer.testing import CliRunner

from layerlab.cli.app import app


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("layerlab ins", ["inspect"]),
        ("layerlab ", ["inspect", "variants"]),
        ("layerlab adapt ", ["embed", "clean"]),
        ("layerlab inspect --fi", ["--figures"]),
        ("layerlab inspect --figures ", ["svg", "png"]),
        ("layerlab inspect --figures svg --figures png --la", ["--lang"]),
    ],
)
def test_what_is_begun_is_completed_in_a_shell(line, found):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    asked = {**words, "_LAYERLAB_COMPLETE": "complete_bash"}
    given = CliRunner().invoke(app, prog_name="layerlab", env=asked)
    assert given.stdout.split()[: len(found)] == found
