"""What a saliency is asked about: texts, words behind them, and what is refused."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from layerlab import UserError, builtin
from layerlab.errors import NotApplicable
from layerlab.measures.quantities.saliency import MEASURES
from layerlab.measures.runner import readings
from layerlab.measures.support.saliency.prompt import NAME, PROBE, earlier, prompt
from tests.measures.asked import subject

OPTIONS = MEASURES[0].options


@pytest.fixture(scope="module")
def words():
    """Every word a token, with its space; an end of text is set behind each text."""
    known = ["<s>", "</s>", *("I Ġam Ġhere Ġwas Anna ĠAnna Ġ".split())]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


@pytest.fixture
def patient(tiny, words):
    return subject(tiny("gpt2", vocab_size=16, n_positions=8), words)


def asked(patient, read=(), **options):
    return prompt(patient, {**OPTIONS, **options}, list(read))


def test_a_text_goes_on_where_a_tokenizer_would_end_it(patient):
    found = asked(patient, text="I am")
    assert found.tokens.tolist() == [0, 2, 3] and found.position == 2
    assert found.target == () and found.foil is None and found.remarks == ()


def test_a_word_is_cut_as_it_would_follow(patient):
    found = asked(patient, text="I am", target=" Anna", foil=" here")
    assert found.target == (7,) and found.foil == 4
    assert asked(patient, text="I am", target=7, foil=0).target == (7,)


def test_of_several_tokens_the_first_is_asked_about(patient):
    found = asked(patient, text="I am", target=" here was")
    assert found.target == (4, 5)
    assert found.remarks == (
        "the target ' here was' is 2 tokens here: the first, ' here', is asked about",
    )
    given = MEASURES[0].given(text="I am", target=" here was", foil=" Anna")
    picture = readings(patient, [torch.tensor([2])], [given]).pictures["saliency"]
    assert (picture["target"]["token"], picture["target"]["word"]) == (" here", " here was")
    assert picture["foil"]["token"] == " Anna" and "word" not in picture["foil"]


def test_earlier_occurrences_are_of_the_whole_target(patient):
    found = asked(patient, text="I am here am", target=" am here")
    assert found.target == (3, 4) and earlier(found) == [2, 3]
    assert earlier(asked(patient, text="I am")) == []


def test_behind_the_position_nothing_counts_as_earlier(patient):
    found = asked(patient, text="I am here am", target=" am", position=3)
    assert found.target == (3,) and earlier(found) == [2]


def test_the_probe_asks_for_its_name(tiny):
    words = AutoTokenizer.from_pretrained(builtin.path("llama"))
    patient = subject(tiny("llama", vocab_size=512, max_position_embeddings=256), words)
    found = asked(patient)
    assert words.decode(list(found.target)) == NAME and PROBE.count(NAME) == 3
    ids = found.tokens.tolist()
    assert words.decode([ids[place] for place in earlier(found)]) == 3 * NAME


def test_without_a_text_the_first_sequence_is_the_prompt(patient):
    found = asked(patient, [torch.tensor([2, 3, 4]), torch.tensor([5])], text=None, position=-2)
    assert found.tokens.tolist() == [2, 3, 4] and found.position == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"text": "I am", "position": 3},
            "position 3 is outside the prompt, which has 3 tokens for tiny; give one from -3 to 2",
        ),
        ({"text": "I am", "target": 16}, "target 16 is no token of tiny, whose vocabulary has 16"),
        ({"text": "I am", "foil": ""}, "the foil '' is no token of tiny; give a word with the"),
        ({"text": " "}, "the text of a saliency is empty; give some words, as --saliency 'I am'"),
        ({"target": " x", "foil": " x"}, "target and foil are both ' x', and nothing tells a word"),
        ({"target": 3, "foil": 3}, "target and foil are both 3, and nothing tells a word from it"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(patient, options, said):
    """What no model can be asked is refused where it is given, before any work."""
    with pytest.raises(UserError) as caught:
        MEASURES[0].given(**options)
        asked(patient, **options)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"text": "I" + 9 * " am"},
            "the prompt has 11 tokens, and the context of tiny is 8; shorten it, or put it into a "
            "file and type --text FILE --context 8 --measures 'saliency(text=None)', which asks "
            "behind its first 8 tokens",
        ),
        (
            {"text": "I am", "target": " here", "foil": " here was"},
            "target and foil begin with the same token of tiny, ' here'; give words that begin",
        ),
        ({"text": "I am", "target": 4, "foil": " here"}, "the same token of tiny, ' here'"),
    ],
)
def test_what_does_not_fit_a_model_is_a_reason(patient, options, said):
    with pytest.raises(NotApplicable) as caught:
        asked(patient, **options)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_word_may_stand_behind_a_prompt_that_fills_the_context(patient):
    found = asked(patient, text="I" + 6 * " am", target=" here", foil=" was")
    assert len(found.tokens) == 8 and found.target == (4,) and found.foil == 5


def test_a_word_that_is_cut_is_remembered_whole(patient):
    found = asked(patient, text="I am", target=" here was", foil=" Anna")
    assert found.words == {"target": " here was"}


def test_one_token_is_no_prompt(tiny):
    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"I": 0}, "I")))
    with pytest.raises(NotApplicable, match="the prompt is 1 token; give it one word more"):
        asked(subject(tiny("gpt2"), tokenizer=bare), text="I")


def test_a_word_needs_a_tokenizer_and_a_number_does_not(tiny):
    patient, read = subject(tiny("gpt2")), [torch.tensor([2, 3])]
    assert asked(patient, read, text=None, target=4).target == (4,)
    with pytest.raises(UserError, match="no tokenizer to read the target ' a' with; give the num"):
        asked(patient, read, text=None, target=" a")
