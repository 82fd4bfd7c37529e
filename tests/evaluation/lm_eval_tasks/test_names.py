"""lm-eval's own tasks are found by name without reading all of them."""

import pytest

pytest.importorskip("lm_eval")

from layerlab.evaluation.lm_eval_tasks.names import find_entries, member_names


def test_a_task_a_group_and_a_tag_are_found_with_their_members():
    found = find_entries(["hellaswag", "blimp", "ai2_arc"])
    assert found["hellaswag"].yaml_path.name == "hellaswag.yaml"
    members = member_names(found["blimp"].cfg)
    assert len(members) > 60 and set(members) <= set(found)
    assert found["ai2_arc"].tags == {"arc_easy", "arc_challenge"}
    assert {"arc_easy", "arc_challenge"} <= set(found)


def test_a_name_that_there_is_not_is_not_found():
    assert find_entries(["hella_swag", "=", "", "acc_norm", "doc_to_text"]) == {}
