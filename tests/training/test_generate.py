"""Continuations: the likeliest tokens, nobody's random state, the mode that the model was in."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layerlab.model.build import build
from layerlab.model.modeling import LabForCausalLM
from layerlab.recipes.training_sections import EvaluateSection
from layerlab.tokenization.train import train_bpe
from layerlab.training.generate import generate_samples

CONTEXT = 24


@pytest.fixture(scope="module")
def corpus() -> Any:
    words = train_bpe(["the cat sat on the mat and the dog sat on the cat " * 4], vocab=300)
    return SimpleNamespace(tokenizer=words, separator=words.eos_token_id)


@pytest.fixture(scope="module")
def model() -> LabForCausalLM:
    made = build("llama", width=32, layers=2, heads=2, vocab=300, context=CONTEXT, seed=3)
    with torch.no_grad():
        for one in made.parameters():
            one.mul_(3)  # so that tokens differ in how likely they are
    return made.train()


def asked(*prompts: str, length: int = 8) -> EvaluateSection:
    return EvaluateSection(prompts=prompts, max_new_tokens=length)


def by_hand(model: LabForCausalLM, corpus: Any, prompt: str, length: int) -> str:
    return str(corpus.tokenizer.decode(followers(model, corpus, prompt, length)))


def followers(model: LabForCausalLM, corpus: Any, prompt: str, length: int) -> list[int]:
    """The likeliest token, again and again, each time from the start."""
    tokens = corpus.tokenizer(prompt)["input_ids"]
    added: list[int] = []
    model.eval()
    for _ in range(length):
        with torch.no_grad():
            logits = model(torch.tensor([tokens + added])).logits
        added.append(int(logits[0, -1].argmax()))
        if added[-1] == corpus.separator:
            added.pop()
            break
    model.train()
    return added


def test_the_likeliest_tokens_follow(model, corpus):
    prompts = ("the cat", "on the mat and")
    found = generate_samples(model, corpus, asked(*prompts))
    assert found == [(prompt, by_hand(model, corpus, prompt, 8)) for prompt in prompts]
    assert all(text for _, text in found)


def test_a_continuation_ends_where_the_model_ends_the_document(model, corpus):
    *some, end = followers(model, corpus, "the cat", 3)
    other = SimpleNamespace(tokenizer=corpus.tokenizer, separator=end)
    ((_, text),) = generate_samples(model, other, asked("the cat"))
    assert end not in some and text == corpus.tokenizer.decode(some)


@pytest.mark.parametrize("learning", [True, False])
def test_random_state_and_mode_stay(model, corpus, learning):
    model.train(learning)
    before = torch.random.get_rng_state()
    generate_samples(model, corpus, asked("the"))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(one.training == learning for one in model.modules())
    model.train()


def test_a_long_prompt_keeps_its_end(model, corpus):
    words = corpus.tokenizer
    long = "the dog sat on the cat and the cat sat on the dog and the dog sat on the mat again"
    kept = words.decode(words(long)["input_ids"][-(CONTEXT - 8) :])
    assert len(words(long)["input_ids"]) > CONTEXT
    found = generate_samples(model, corpus, asked(long, kept))
    assert found[0][1] == found[1][1]


@pytest.mark.few(1)
@pytest.mark.parametrize("length", [CONTEXT - 1, CONTEXT, 10 * CONTEXT])
def test_a_length_beyond_the_context_is_cut(model, corpus, length):
    room = CONTEXT - len(corpus.tokenizer("the cat")["input_ids"])
    ((_, text),) = generate_samples(model, corpus, asked("the cat", length=length))
    assert text == by_hand(model, corpus, "the cat", room)


def test_an_empty_prompt_begins_a_document(model, corpus):
    ((prompt, text),) = generate_samples(model, corpus, asked(""))
    assert prompt == ""
    end = corpus.tokenizer.decode([corpus.separator])
    assert text == by_hand(model, corpus, end, 8)


def test_no_prompt_asks_nothing_of_the_model(corpus):
    assert generate_samples(None, corpus, asked()) == []


@pytest.mark.full
def test_layers_that_are_compiled_are_not_compiled_for_each_length(corpus, monkeypatch):
    model = build("llama", width=16, layers=1, heads=2, vocab=300, context=16, seed=0)
    stances: list[str] = []
    real = torch.compiler.set_stance
    monkeypatch.setattr(
        torch.compiler, "set_stance", lambda stance: (stances.append(stance), real(stance))[1]
    )
    plain = generate_samples(model, corpus, asked("the cat", length=4))
    assert not stances
    # Type checks of the tests would break its graph: this raises where anything is compiled.
    model.model.layers[0].compile(fullgraph=True)
    assert generate_samples(model, corpus, asked("the cat", length=4)) == plain
    assert stances == ["force_eager"]
