"""Answers are the likeliest, and no prompt's depends on the others that it is read with."""

from typing import Any

import pytest
import torch

from layerlab import UserError, build
from layerlab.adaptation.sft.conversations import Turn
from layerlab.adaptation.sft.encode import Encoder
from layerlab.adaptation.sft.generate import answers
from tests.adaptation.spoken import speaker
from tests.families import recipe

SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 288, "context": 64}
PROMPTS = ["a", "what is a contract?", "合同", "b", [Turn("system", "s"), Turn("user", "hello")]]


def made() -> Any:
    generator = torch.Generator().manual_seed(0)
    model = build("llama", **SIZES)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.3 * torch.randn(one.shape, generator=generator))
    return model.double()


def literally(model: Any, words: Any, prompt: Any, new: int) -> str:
    """The likeliest token of a pass over all that stands before it, up to an end or the context."""
    encoder = Encoder(words)
    ids = encoder.prompt(prompt)
    start = len(ids)
    while len(ids) < min(start + new, SIZES["context"]):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in (encoder.closing(), words.eos_token_id):
            ids.pop()
            break
    return str(words.decode(ids[start:], skip_special_tokens=True)).strip()


@pytest.mark.parametrize("padded", [True, False])
def test_an_answer_is_the_likeliest_token_again_and_again(padded):
    model, words = made().train(), speaker()
    if not padded:
        words.pad_token = None
    found = answers(model, words, PROMPTS, new=6, batch=3)
    assert model.training
    assert found == [literally(model.eval(), words, prompt, 6) for prompt in PROMPTS]
    assert len(set(found)) > 1


def test_a_prompt_near_the_end_of_the_context_shortens_no_other_answer():
    model, words = made(), speaker()
    alone = [answers(model, words, [one], new=12)[0] for one in ("a", "b" * 40)]
    assert answers(model, words, ["b" * 40, "a"], new=12) == alone[::-1]
    assert alone == [literally(model, words, one, 12) for one in ("a", "b" * 40)]
    sizes = [len(Encoder(words).prompt(one)) for one in ("a", "b" * 40)]
    assert sizes[0] + 12 <= 64 < sizes[1] + 12, "only the longer one is near the end"


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_an_answer_stops_at_either_end(end):
    model, words = made(), speaker()
    likeliest = [words.convert_tokens_to_ids(one) for one in (end, *"aaaa")]

    def push(module: Any, given: Any, found: Any) -> None:
        found.logits[..., likeliest.pop(0)] += 1e6

    model.register_forward_hook(push)
    assert answers(model, words, ["a"], new=4) == [""]
    assert len(likeliest) == 4


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused():
    model, words = made(), speaker()
    rest = 64 - len(Encoder(words).prompt("b"))
    assert answers(model, words, ["b" * rest])[0] == literally(model, words, "b" * rest, 1)
    with pytest.raises(UserError, match="has 64 tokens, and the model reads 64 with its answer"):
        answers(model, words, ["b" * (rest + 1)])


def test_a_prompt_longer_than_the_context_is_named():
    with pytest.raises(UserError, match=r"the prompt '.*' has \d+ tokens, and the model reads 64"):
        answers(made(), speaker(), ["a", "b" * 80])


def test_settings_that_came_with_a_model_change_no_answer():
    model, words = made(), speaker()
    expected = answers(model, words, PROMPTS, new=6)
    model.generation_config.min_new_tokens = model.generation_config.no_repeat_ngram_size = 2
    model.generation_config.suppress_tokens = [*range(200)]
    assert answers(model, words, PROMPTS, new=6) == expected


@pytest.mark.full
@pytest.mark.parametrize(("family", "padded"), [("rwkv", True), ("rwkv", False), ("bart", True)])
def test_a_model_that_reads_its_batch_answers_each_prompt_alone(family, padded):
    words = speaker()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = recipe.build(family)
        model.resize_token_embeddings(len(words), mean_resizing=False)
    if not padded:
        words.pad_token = None
    alone = [answers(model, words, [one], new=8)[0] for one in PROMPTS]
    assert answers(model, words, PROMPTS, new=8) == alone and len(set(alone)) > 1
