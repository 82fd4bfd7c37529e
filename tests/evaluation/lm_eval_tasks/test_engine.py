"""What importing the engine leaves of a process."""

import os

import pytest

from tests.support.forked import empty_python

SAID = "HF_XET_HIGH_PERFORMANCE"


@pytest.mark.full
@pytest.mark.parametrize("own", [None, "0"])
def test_the_environment_is_as_it_was(own):
    code = (
        "import os, layerlab.evaluation.lm_eval_tasks.engine;"
        f"print(os.environ.get('{SAID}'), os.environ.get('HF_HUB_ENABLE_HF_TRANSFER'))"
    )
    given = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    given |= {} if own is None else {SAID: own}
    done = empty_python("-c", code, env=given)
    assert done.stdout.split() == [str(own), "None"]
