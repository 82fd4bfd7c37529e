import pytest

from layerlab.loading.names import label, label_models


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("stories/hf", "stories/hf"),
        ("stories/Model", "stories/Model"),
        ("sft/checkpoint-500", "sft/checkpoint-500"),
        ("runs/llama", "llama"),
        ("runs/hf-llama", "hf-llama"),
    ],
)
def test_a_folder_whose_name_says_nothing_is_called_with_the_one_above(
    folder, expected, tiny, tmp_path, monkeypatch
):
    (tmp_path / folder).mkdir(parents=True)
    assert label(str(tmp_path / folder)) == expected
    monkeypatch.chdir(tmp_path / folder)
    assert label(".") == expected
    model = tiny("gpt2")
    model.config._name_or_path = folder
    assert label(model) == expected


def test_models_of_one_name_are_called_by_their_paths_and_one_given_twice_by_a_number(tmp_path):
    given = [str(tmp_path / folder / "llama") for folder in ("a", "b")]
    for name in given:
        (tmp_path / name).mkdir(parents=True)
    assert label_models([*given, "other"]) == [*given, "other"]
    assert label_models(given[:1] * 2) == [given[0], f"{given[0]} (2)"]
