import pytest
import torch

from layerlab.loading.model import LoadedModel
from layerlab.measures.drilldown import TOKENS, channels, details, positions_to_show
from layerlab.observe.tracing.attention.record import AttentionRecord


@pytest.fixture
def patient(tiny) -> LoadedModel:
    return LoadedModel(name="patient", source="memory", model=tiny("gpt2"), tokenizer=None)


def test_a_heads_map_is_its_attention_matrix_in_bytes(patient):
    tokens = torch.arange(3, 15)
    place = ("attention", "patient", 0, 1, 1)
    view = details(patient, [tokens], [place])[place]
    patient.model.set_attn_implementation("eager")
    with torch.no_grad():
        matrix = patient.model(tokens[None], output_attentions=True).attentions[1][0, 1]
    assert view["tokens"] == [str(token) for token in tokens.tolist()]
    assert view["queries"] == list(range(12))
    for row, line in enumerate(view["weights"]):
        assert len(line) == row + 1
        assert (torch.tensor(line) / 255 - matrix[row, : row + 1]).abs().max() <= 0.6 / 255


def test_the_largest_channels_are_named_with_their_token(patient):
    stream = torch.zeros(4, 5)
    stream[2, 3], stream[1, 0], stream[0, 3] = -9.0, 4.0, 1.0
    first, second, *_ = channels(stream, ["a", "b", "c", "d"])
    assert first == {"channel": 3, "token_index": 2, "token": "c", "value": -9.0}
    assert second == {"channel": 0, "token_index": 1, "token": "b", "value": 4.0}
    place = ("channels", "patient", 1, 1)
    found = details(patient, [torch.arange(3, 9), torch.arange(5, 12)], [place])[place]
    assert found["sequence"] == 1 and len(found["channels"]) == 12


def test_other_models_and_absent_places_have_no_picture(patient):
    tokens = [torch.arange(3, 9)]
    assert details(patient, tokens, [("attention", "another", 0, 0, 0)]) == {}
    assert details(patient, tokens, [("channels", "patient", 0, 40)]) == {}


def test_of_a_long_sequence_the_part_around_the_largest_score_is_shown():
    query = torch.full((1, 500, 2), 0.01)
    key = torch.full((1, 500, 2), 0.01)
    query[0, 400], key[0, 300] = 5.0, 5.0
    rows = positions_to_show(AttentionRecord(layer=0, name="a", query=query, key=key), 0)
    assert len(rows) <= TOKENS and rows == sorted(set(rows))
    assert {0, 300, 400} <= set(rows)
