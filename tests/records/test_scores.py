"""Scores beside a run: read back as they were written, and refused where they are not its own."""

import functools
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from layerlab.errors import UserError
from layerlab.records.parse import seal, unseal
from layerlab.records.scores import SCORES, ModelScore, TaskPart, read_scores, write_score
from tests.support.refused import refuses

RESULT = {"run": "llama-s1", "weights": "a" * 32}


def scored(*worth: float, **given: Any) -> ModelScore:
    """A score of one task with these questions."""
    score = sum(worth) / len(worth)
    questions = {str(place): one for place, one in enumerate(worth)}
    part = TaskPart(task="own", weight=1.0, score=score, questions=questions)
    return ModelScore(**{"score": score, "asked": "x", "seconds": 1.0, "parts": [part], **given})


def test_scores_come_back_as_they_were_and_lie_side_by_side(tmp_path):
    assert read_scores(tmp_path, RESULT) == {}
    write_score(tmp_path, RESULT, "suite:own", scored(1.0, 0.0))
    write_score(tmp_path, RESULT, "command:own", scored(3.5))
    write_score(tmp_path, RESULT, "suite:own", scored(1.0, 1.0, 0.0))
    found = read_scores(tmp_path, RESULT)
    assert found == {"suite:own": scored(1.0, 1.0, 0.0), "command:own": scored(3.5)}
    assert [one.name for one in tmp_path.iterdir()] == [SCORES], "nothing half-written is left"
    assert read_scores(tmp_path, None) == {}, "a run without a result has no finished model"


@pytest.mark.parametrize("worth", [(0.1, 0.2, -0.3), (1e9, 1e9 / 3, 0.1)])
def test_rounding_of_a_mean_is_no_other_score(worth, tmp_path):
    """A mean of 0 has no relative error, and that of large scores no absolute one."""
    for score in (math.fsum(worth) / 3, sum(worth) / 3):
        for error in (1e-12, -1e-12):
            own = score * (1 + error) + error
            part = TaskPart(
                task="own", weight=1.0, score=own, questions=dict(zip("abc", worth, strict=True))
            )
            kept = ModelScore(score=own, asked="x", seconds=1.0, parts=[part])
            write_score(tmp_path, RESULT, "suite:own", kept)
            assert read_scores(tmp_path, RESULT)["suite:own"] == kept


def test_scores_of_other_weights_or_another_run_are_refused(tmp_path):
    write_score(tmp_path, RESULT, "suite:own", scored(1.0, 0.0))
    for name, value in (("weights", "b" * 32), ("run", "llama-s2")):
        with pytest.raises(UserError, match=f"is not believed: its {name} is not that of the") as e:
            read_scores(tmp_path, {**RESULT, name: value})
        assert "delete it and type layerlab compare again" in str(e.value)


def test_a_changed_file_is_refused_and_so_is_one_that_was_sealed_anew(tmp_path):
    write_score(tmp_path, RESULT, "suite:own", scored(1.0, 0.0))
    file = tmp_path / SCORES
    whole = json.loads(file.read_text("utf-8"))
    part = whole["measures"]["suite:own"]["parts"][0]
    part["questions"]["1"] = 1.0
    for content, why in (
        (whole, "it is not what was written"),
        (seal(whole), "the score of own is not the mean of its questions"),
    ):
        file.write_text(json.dumps(content), encoding="utf-8")
        refuses(why, read_scores, tmp_path, RESULT)
    part |= {"score": 1.0}
    file.write_text(json.dumps(seal(whole)), encoding="utf-8")
    refuses("a score is not that of its parts", read_scores, tmp_path, RESULT)
    part["weight"] = 0.5
    file.write_text(json.dumps(seal(whole)), encoding="utf-8")
    refuses("its weights do not add up to 1", read_scores, tmp_path, RESULT)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"schema": 1}', "\x00", "[" * 10_000])
def test_what_is_no_file_of_scores_is_one_line(text, tmp_path):
    (tmp_path / SCORES).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="is not believed") as told:
        read_scores(tmp_path, RESULT)
    assert "\n" not in str(told.value)


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a table something stands."""
    inside = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in inside:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


@pytest.mark.parametrize("junk", [None, [], {}, "x", -1, 2, 1e300, True, "\ud800", ["a", {}]])
def test_whatever_stands_in_a_sealed_file_is_believed_or_one_line(junk, tmp_path):
    write_score(tmp_path, RESULT, "suite:own", scored(1.0, 0.0))
    file = tmp_path / SCORES
    whole = unseal(json.loads(file.read_text("utf-8")))
    refused = 0
    for path in list(places(whole)):
        changed = json.loads(json.dumps(whole))
        home = functools.reduce(lambda table, key: table[key], path[:-1], changed)
        home[path[-1]] = junk
        file.write_text(json.dumps(seal(changed)), encoding="utf-8")
        try:
            read_scores(tmp_path, RESULT)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and "is not believed" in str(error)
    assert refused > 5
