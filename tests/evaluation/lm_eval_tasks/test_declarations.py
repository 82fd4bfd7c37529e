"""Names of lm-eval's own tasks are looked up without lm-eval."""

import pytest

pytest.importorskip("lm_eval")

from layerlab.evaluation.lm_eval_tasks.declarations import check_name, refuse_name
from tests.support.refused import refuses


@pytest.mark.full
@pytest.mark.parametrize("name", ["hellaswag", "blimp", "ai2_arc", "mmlu_stem_tasks"])
def test_a_task_a_group_and_a_tag_are_known(name):
    check_name(name)


@pytest.mark.full
@pytest.mark.parametrize("name", ["hella_swag", "=", "arc easy", "hellaswag.yaml.bak"])
def test_a_name_in_no_file_is_refused(name):
    refuses("lm-eval has no task, group or tag", check_name, name)


@pytest.mark.full
def test_a_name_that_there_is_not_is_named_with_the_nearest():
    assert str(refuse_name("hella_swag")) == (
        "lm-eval has no task, group or tag 'hella_swag'; did you mean hellaswag, or a task file "
        "such as my_task.yaml"
    )
    assert "expected a name that lm-eval ls tasks lists" in str(refuse_name("\U0001f600" * 9))
