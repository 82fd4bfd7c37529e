"""Answers that were marked, asked or kept in other ways than those of another model."""

import json
from pathlib import Path
from typing import Any

import pytest

import layerlab
from tests.evaluation.paired.written_samples import DATE, sample, write
from tests.support.refused import refuses

REGEX = [{"name": "none", "filter": [{"function": "regex", "regex_pattern": "#### (.*)"}]}]


def model(folder: Path, name: str = "none", **told: Any) -> Path:
    """Answers of a model, and what lm-eval writes beside them."""
    config = {"filter_list": REGEX, "metric_list": [{"metric": "acc", "f": "<function f at 0x7f>"}]}
    write(folder, [sample(n, n % 2, filter=name) for n in range(8)])
    results = {
        "configs": {"own": {**config, **told.pop("configs", {})}},
        "versions": {"own": told.pop("version", 1.0)},
        "n-samples": {"own": {"effective": 8}},
        "config": {"model": "hf", "model_args": f"pretrained={folder.name}"},
        **told,
    }
    (folder / f"results_{told.pop('date', DATE)}.json").write_text(json.dumps(results))
    return folder


def judged(*folders: Path, **given: Any) -> list[str]:
    found = layerlab.judge([str(one) for one in folders], **given)
    return list(found.content["remarks"])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"name": "loose"}, "filter is 'loose' and 'none'"),
        ({"version": 2.0}, r"version is '2\.0' and '1\.0'"),
        ({"configs": {"filter_list": []}}, "filter_list is "),
        ({"configs": {"metric_list": [{"metric": "acc", "ignore_case": True}]}}, "metric_list is "),
    ],
)
def test_answers_that_were_marked_otherwise_are_refused(tmp_path, other, said):
    base, tuned = model(tmp_path / "base"), model(tmp_path / "tuned", **other)
    refuses(f"were not marked in the same way: {said}", judged, base, tuned)
    told = judged(base, tuned, allow=["marks"])
    assert any(one.startswith("answers that were marked with other") for one in told)


def test_what_is_not_told_and_addresses_in_memory_are_no_other_marks(tmp_path):
    base, bare = model(tmp_path / "base"), model(tmp_path / "bare", versions=None)
    moved = [{"metric": "acc", "f": "<function f at 0x5a>"}]
    tuned = model(tmp_path / "tuned", configs={"metric_list": moved, "filter_list": None})
    for other in (bare, tuned):
        assert not any("marked" in one for one in judged(base, other))


def test_settings_of_models_are_named_but_for_their_own(tmp_path):
    base = model(tmp_path / "base", max_length=512, model_sha="a")
    tuned = model(tmp_path / "tuned", max_length=24, model_sha="b")
    told = judged(base, tuned)
    assert "models were loaded or asked with other settings of max_length ('512' and '24')" in told
    assert "prompts that are longer than a model's max_length were cut by lm-eval" in told
    args = {"config": {"model": "hf", "model_args": "pretrained=x,add_bos_token=True"}}
    begun = model(tmp_path / "begun", max_length=512, **args)
    (said,) = [one for one in judged(base, begun) if "other settings" in one]
    assert said.endswith("add_bos_token ('none given' and 'True')")
    assert not any("settings" in one for one in judged(base, model(tmp_path / "plain")))


def test_answers_that_are_older_than_their_results_are_refused(tmp_path):
    base, tuned = model(tmp_path / "base"), model(tmp_path / "tuned")
    newer = tuned / "results_2027-02-03T04-05-06.000000.json"
    newer.write_text(json.dumps({"n-samples": {"another": {"effective": 8}}}))
    assert judged(base, tuned)
    newer.write_text(json.dumps({"n-samples": {"own": {"effective": 8}}}))
    refuses(f"{newer.name} is newer than the answers to 'own' beside it", judged, base, tuned)
