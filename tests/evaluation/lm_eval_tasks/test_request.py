"""What `--tasks` asks for is checked before lm-eval is imported."""

import pytest

from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.request import check_tasks, is_file, split_tasks
from tests.support.refused import refuses


def test_tasks_stand_between_commas():
    assert split_tasks(" arc_easy, ,a/b.yaml,") == ["arc_easy", "a/b.yaml"]
    assert [is_file(word) for word in ("arc_easy", "a.yml", "a/b")] == [False, True, True]


@pytest.mark.parametrize("words", ["", " , "])
def test_no_task_is_refused(words):
    refuses("no task is named in '", check_tasks, words)


def test_every_task_is_checked_files_and_names(tmp_path):
    pytest.importorskip("lm_eval")
    own = tmp_path / "own.yaml"
    own.write_text("task: own\n")
    check_tasks(f"{own},arc_easy")
    with pytest.raises(UserError, match="has no task, group or tag 'arc_eazy'; did you mean arc_e"):
        check_tasks(f"{own},arc_eazy")
    refuses("cannot read ", check_tasks, f"arc_easy,{tmp_path / 'gone.yaml'}")
