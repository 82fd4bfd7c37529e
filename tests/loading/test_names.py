import peft
import pytest

from layerlab.loading.names import label, label_models, show_inside


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


@pytest.mark.filterwarnings("ignore")  # PEFT's
def test_a_model_in_memory_is_called_with_the_adapters_that_change_it(tiny):
    model = tiny("llama")
    model.config._name_or_path = "base"
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    assert label(model) == "base (adapter default)"
    assert show_inside(adapted) == ": give model.get_base_model()"
    with adapted.disable_adapter():
        assert label(model) == "base"


@pytest.mark.filterwarnings("ignore")  # PEFT's
def test_the_model_of_learned_prompts_is_not_what_was_learned(tiny):
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    found = show_inside(peft.get_peft_model(tiny("llama"), settings))
    assert found == "; what it has learned are prompts, which no weights of a model hold"
