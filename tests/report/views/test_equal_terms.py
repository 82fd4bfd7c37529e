"""What manifests have in common."""

from layerlab.records.settings import matches
from layerlab.report.views.equal_terms import MOST, equality
from tests.report.support.race import race


def test_equal_entries_and_differing_ones_share_all_paths():
    manifests = race(("llama", "history-1"))["manifests"]
    found = equality(manifests, [])
    assert found["runs"] == 6
    assert found["equal"]["recipe.train.batch_size"] == "16"
    assert found["equal"]["versions.torch"] == "2.13.0"
    paths = {one["path"] for one in found["differing"]}
    assert paths == {"data.order", "model.parameters", "recipe.model.variant", "recipe.train.seed"}
    assert not paths & set(found["equal"])


def test_a_value_names_the_arms_that_have_it_once():
    found = equality(race(("llama", "history-1"))["manifests"], [])
    variant = next(one for one in found["differing"] if one["path"] == "recipe.model.variant")
    assert variant["values"] == [
        {"value": "llama", "arms": ["llama"]},
        {"value": "history-1", "arms": ["history-1"]},
    ]


def test_a_setting_that_some_runs_lack_is_a_difference():
    found = equality({"a": {"arm": "a", "x": 1}, "b": {"arm": "b"}, "c": "damaged"}, [])
    assert found["runs"] == 2
    assert [v["value"] for v in found["differing"][0]["values"]] == ["1", "–"]


def test_of_many_values_the_first_are_shown_and_the_rest_counted():
    many = {str(n): {"arm": "a", "x": n} for n in range(MOST + 5)}
    values = equality(many, [])["differing"][0]["values"]
    assert len(values) == MOST + 1
    assert values[-1]["value"] == "and 5 more"


def test_what_is_declared_is_marked():
    pair = {
        "a": {"arm": "a", "recipe": {"train": {"batch_size": 8}}},
        "b": {"arm": "b", "recipe": {"train": {"batch_size": 16}}},
    }
    assert equality(pair, ["train"])["differing"][0]["declared"]
    assert not equality(pair, ["data"])["differing"][0]["declared"]
    assert matches("train.batch_size", ["train.*"]) and not matches("training", ["train"])
