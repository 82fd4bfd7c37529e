import pytest

from layerlab.evaluation.paired.one_model import describe_settings


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([{"model_dtype": "a"}, {"model_dtype": "b"}, {}], ["model_dtype ('a' and 'b')"]),
        ([{"model_dtype": "a", "peft_rank": "8"}, {"model_dtype": "a"}], []),
        ([{"model_dtype": "a"}, {"model_sha": "b"}], []),
        ([{"peft_rank": "8"}, {"trust": "True"}], ["peft_rank", "trust"]),
    ],
)
def test_settings_are_compared_where_both_models_tell_of_any(models, said):
    found = describe_settings(models)
    assert [one[: len(begin)] for one, begin in zip(found, said, strict=True)] == said
