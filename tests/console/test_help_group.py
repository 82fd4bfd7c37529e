"""A group of commands without a command."""

import pytest

from tests.cli.several import several


@pytest.mark.parametrize("group", [(), ("bench",)])
def test_a_group_alone_shows_its_help(group, tmp_path):
    alone, asked, short = several([group, (*group, "--help"), (*group, "-h")], tmp_path)
    assert alone == asked == short and alone.code == 0 and alone.error == ""
    assert alone.out.count("\n") > 8 and "\nCommands:\n" in alone.out
