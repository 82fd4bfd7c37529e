import pytest

from layerlab.loading.names import label


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
