"""Whatever goes by token ids moves with the embedding, in every family, or the model is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import nn
from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.embeddings.resize import find_kept_rows, resize
from layerlab.adaptation.embeddings.special_tokens import list_ids
from layerlab.recipes.adaptation_sections import EmbeddingSection
from tests.families.recipe import FAMILIES, UNBUILT, build
from tests.support.refused import refusal

MORE = 7
TEXT = slice(20, 32)
ROUNDING = 1e-4
# Matrices of which no tokenizer has a row for each token.
OTHER = {"cpmant", "mllama", "moshi", "musicgen", "musicgen_melody"}
# Its bytes are hashed, and each of its three parts has a vocabulary of its own.
HASHED = {"blt"}
# Its settings name tokens that the tiny model lacks, and must name some.
STRICT = {"marian", "modernbert-decoder", "moss_transcribe_diarize", "whisper"}
# Without the token that stands for a picture it cannot be called.
SEEING = {"gemma4", "gemma4_unified"}


def words(ids: Sequence[int]) -> PreTrainedTokenizerFast:
    """A tokenizer with a word for each old id."""
    vocab = {f"t{number}": place for place, number in enumerate(ids)}
    made = Tokenizer(models.WordLevel(vocab, unk_token=f"t{ids[0]}"))
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=f"t{ids[0]}")


def made(family: str, **settings: Any) -> Any:
    """A model of the family in which no table is without effect; with other settings, if given."""
    model = build(family).float()
    if settings:
        model = type(model)(type(model.config)(**{**model.config.to_dict(), **settings})).eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0  # as training leaves it, and Youtu's loading
        for name, buffer in model.named_buffers():
            if name.endswith("tid2eid"):
                buffer.random_(0, 4)
    return model


def chosen(model: Any, kind: str) -> list[int]:
    """The old ids in their new order, and behind them ids of new tokens."""
    rows = len(model.get_input_embeddings().weight)
    if kind == "extended":
        return [*range(rows + MORE)]
    named = list_ids(model)
    kept = [number for number in range(rows) if number % 5 != 4 or number in named]
    more = {"pruned": 0, "changed": MORE, "exchanged": rows - len(kept)}[kind]
    return [*kept, *range(rows, rows + more)]


def logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def check_kept(family: str, kind: str, folder: Path) -> None:
    """Resize a model, and compare its logits with those before, also when it was loaded."""
    model = made(family)
    rows = len(model.get_input_embeddings().weight)
    ids = chosen(model, kind)
    kept = [number for number in ids if number < rows]
    before = logits(model, kept[TEXT])[:, kept]
    base, new = words(range(rows)), words(ids)
    resize(model, base, new, EmbeddingSection(head="first"), kept=find_kept_rows(base, new))
    model.save_pretrained(folder)
    again = type(model).from_pretrained(folder)
    text = [*range(*TEXT.indices(rows))]
    for one in (model, again):
        assert len(one.get_input_embeddings().weight) == len(ids)
        apart = logits(one, text)[:, : len(kept)] - before
        assert apart.abs().max() <= ROUNDING * before.abs().max()
    # Weights that lie elsewhere in memory may be added up in another order.
    last = [*text, len(ids) - 1]
    ours = logits(model, last)
    assert (logits(again, last) - ours).abs().max() <= ROUNDING * ours.abs().max()


QUICK = ["gemma4_text", "deepseek_v4", "prophetnet", "reformer"]


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", ["pruned", "extended", "exchanged"])
@pytest.mark.parametrize("family", QUICK)
def test_all_tables_by_token_ids_move(family, kind, tmp_path):
    check_kept(family, kind, tmp_path)


def test_a_vocabulary_that_is_counted_twice_is_loaded_again(tmp_path):
    check_kept("marian", "extended", tmp_path)


def test_new_tokens_have_logits_where_a_head_counts_its_own():
    """Inkling 2 gives the logits of `unpadded_vocab_size` tokens."""
    model = made("inkling2_text", unpadded_vocab_size=240)
    resize(model, words(range(240)), words(range(240 + MORE)))
    assert logits(model, [3, 5]).shape[-1] >= 240 + MORE


@pytest.mark.full
@pytest.mark.parametrize("kind", ["changed", "extended"])  # some rows go, and others come, in one
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - UNBUILT.keys() - OTHER))
def test_every_family_is_resized_or_refused(family, kind, tmp_path):
    refused = HASHED if kind == "extended" else HASHED | STRICT | SEEING
    if family not in refused:
        check_kept(family, kind, tmp_path)
        return
    assert "\n" not in refusal(check_kept, family, kind, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_the_check_leaves_the_model_as_it_is():
    """Where Youtu is loaded, its row of padding is made zero: that is not the model's own."""
    model = made("youtu")
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = 1
    rows = len(model.model.embed_tokens.weight)
    resize(model, words(range(rows)), words(range(rows + MORE)))
    assert (model.model.embed_tokens.weight[0] == 1).all()


def refuse(model: Any, drop: int) -> str:
    """What is said where a token is taken out of the vocabulary of a model."""
    rows = len(model.get_input_embeddings().weight)
    kept = [number for number in range(rows) if number != drop]
    said = refusal(resize, model, words(range(rows)), words(kept), kept=kept)
    return said


def test_a_hash_of_token_ids_is_refused():
    said = refuse(made("qwen4_exp_text", ple_layer_ids=[1], ngram_vocab_size_base=64), 7)
    assert said.startswith("Qwen4ExpForCausalLM cannot be given this tokenizer: its logits for")
    assert "for model.layers.0.ple.ple_embedding.ngram_embedding goes by token ids in a way" in said


def test_positions_that_are_counted_from_padding_are_refused():
    """Taking a token before it moves padding, and with it every position."""
    said = refuse(made("roberta", pad_token_id=1), 0)
    assert "for roberta.embeddings.position_embeddings goes by token ids in a way" in said


@pytest.mark.parametrize("family", sorted(STRICT))
def test_a_token_that_a_family_cannot_be_without_is_named(family):
    model = build(family)
    said = refuse(model, 7)
    assert "of the config" in said and "takes no model without one; expected a tokenizer" in said
    assert type(model.config).__name__ in said
