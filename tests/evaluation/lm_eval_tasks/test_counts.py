"""How often a task may have everything done."""

import pytest

pytest.importorskip("lm_eval")

from layerlab.evaluation.lm_eval_tasks.counts import check_counts
from tests.support.refused import refuses


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"repeats": 10**9}, "has repeats = 1000000000; expected a whole number from 1 to 1,024"),
        ({"task": [{"task": "a", "num_fewshot": 10**9}]}, "num_fewshot = 1000000000; expected a"),
        ({"generation_kwargs": {"num_beams": 10**6}}, "num_beams = 1000000; expected a whole"),
        ({"generation_kwargs": {"num_beams": float("nan")}}, "num_beams = nan; expected a whole"),
        ({"num_fewshot": -1}, "num_fewshot = -1; expected a whole number from 0 to 1,024"),
        ({"num_fewshot": 1.5}, "num_fewshot = 1.5; expected a whole number"),
        ({"repeats": 0}, "repeats = 0; expected a whole number from 1"),
    ],
)
def test_what_no_task_asks_for_is_refused(config, said):
    refuses(said, check_counts, config, "the task file a.yaml")


def test_a_task_that_repeats_itself_is_refused_before_it_is_loaded(tmp_path):
    from layerlab.evaluation.lm_eval_tasks.load import load_named

    file = tmp_path / "a.yaml"
    file.write_text("task: a\ndataset_path: json\nrepeats: 1000000000\n")
    refuses(r"a\.yaml has repeats = 1000000000; expected a whole number", load_named, str(file))
    check_counts({"repeats": 64, "num_fewshot": 0, "num_beams": None}, "it")
