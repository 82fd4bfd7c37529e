"""What `layerlab adapt embed` shows: every initialisation, and why the last one is kept."""

import io
from typing import Any

from rich.console import Console

from layerlab.adaptation.embeddings.compare_inits import EmbeddingResult, InitResult
from layerlab.adaptation.trainer.bits_per_byte import Bits, Document
from layerlab.cli.adapt.embeddings import _table


def cost(nats: float, loss: str = "") -> Bits:
    return Bits(documents=(Document(nats, 10, 20),), start="", context=32, unseen=0, loss=loss)


def shown(*losses: tuple[float, float], lost: str = "") -> str:
    """The table of initialisations that cost so much on two texts, on one line."""
    ways = [
        InitResult(input="mean", head="first", bits={"law": cost(law, lost), "news": cost(news)})
        for law, news in losses
    ]
    resized: Any = None  # the table does not tell of it
    before = {"law": cost(30.0), "news": cost(30.0)}
    done = EmbeddingResult(resized=resized, before=before, ways=tuple(ways))
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(_table(done, 80))
    return " ".join(out.getvalue().split())


def test_it_says_that_the_numbers_do_not_choose_and_which_are_the_fewest():
    text = shown((31.0, 33.0), (32.0, 31.0), (33.0, 32.0))
    assert text.endswith(
        "kept: 3, the default, or what --input and --head ask for; these numbers, of before any "
        "training, do not choose. Fewest bits per byte: 1 on law, 2 on news"
    )


def test_where_no_token_is_new_there_was_no_choice():
    assert shown((31.0, 33.0)).endswith(
        "kept: 1, the only one: the new tokenizer has no token that would need a start"
    )


def test_a_text_that_does_not_come_back_has_no_number_and_a_reason():
    text = shown((31.0, 33.0), (32.0, 31.0), lost="'Law' comes back as 'law'")
    assert "2 - 2.236 (+0.072) 1:" in text and "Fewest bits per byte: 2 on news" in text
    assert (
        "bits per byte of law (new tokenizer) are not given: the tokenizer does not give its "
        "held-out text back ('Law' comes back as 'law')" in text
    )
