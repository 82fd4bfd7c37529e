"""Rows of a new tokenizer: old tokens stay as they were, new ones begin as was asked."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PhiConfig, PhiForCausalLM, PreTrainedTokenizerFast

from layerlab import UserError, build
from layerlab.adaptation.embeddings.init import STARTS
from layerlab.adaptation.embeddings.resize import ResizeResult, find_kept_rows, resize
from layerlab.adaptation.embeddings.token_mapping import spell_tokens, token_strings
from layerlab.recipes.adaptation_sections import EmbeddingSection
from layerlab.recipes.load import validate_table
from layerlab.system.logs import quiet_libraries
from layerlab.tokenization.train import END
from tests.support.refused import refusal, refuses

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("a", "b"), ("ab", "c"), ("Ġ", "a"), ("d", "e")]
MORE = [("abc", "de"), ("Ġ", "ab"), ("Ã", "Ĺ"), ("ÃĹ", "ÃĹ")]


def words(merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """A byte-level BPE: the separator, the bytes, and what merges make."""
    names = [END, *LETTERS, *("".join(merge) for merge in merges)]
    vocab = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, clean_up_tokenization_spaces=False
    )


BASE, NEW = words(MERGES), words(MERGES + MORE)
OLD = 1 + 256 + len(MERGES)
FRESH = list(range(OLD, OLD + len(MORE)))
Tiny = Callable[..., Any]


def phi(rows: int) -> Any:
    """A model whose head has a bias."""
    config = PhiConfig(
        vocab_size=rows,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = PhiForCausalLM(config).eval()
        model.lm_head.bias.data.normal_()
    return model


@pytest.fixture(params=["llama", "tied", "gpt2", "bias", "ours", "ours tied"])
def made(request: pytest.FixtureRequest, tiny: Tiny) -> Callable[[int], Any]:
    """A model of each kind, by its number of rows."""
    own = {"width": 16, "layers": 1, "heads": 2, "context": 32}
    kinds: dict[str, Callable[[int], Any]] = {
        "llama": lambda rows: tiny("llama", vocab_size=rows),
        "tied": lambda rows: tiny("llama", vocab_size=rows, tie_word_embeddings=True),
        "gpt2": lambda rows: tiny("gpt2", vocab_size=rows),
        "bias": phi,
        "ours": lambda rows: build("pangu-pi", vocab=rows, **own),
        "ours tied": lambda rows: build("gpt2", vocab=rows, head="tied", **own),
    }
    return kinds[request.param]


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, use_cache=False).logits


IDS = torch.tensor([[0, 5, 66, 258, 259, 7, 260, 40]])


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", STARTS)
def test_logits_of_old_tokens_are_the_same_bits(made, kind):
    model = made(OLD)
    before = logits(model, IDS)
    found = resize(model, BASE, NEW, EmbeddingSection(input=kind, head=kind))
    after = logits(model, IDS)
    assert after.shape[-1] == OLD + len(MORE) == found.rows == model.config.vocab_size
    assert torch.equal(after[..., :OLD], before)
    assert torch.isfinite(after).all()
    assert (found.added, found.dropped, found.orphans) == (len(MORE), 0, 0)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert found.tied is (head.weight is embedding.weight)
    assert embedding.num_embeddings == head.out_features == found.rows


def test_a_resized_model_is_saved_and_loaded(made, tmp_path):
    model = made(OLD)
    resize(model, BASE, NEW)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([FRESH])
    assert torch.equal(logits(again, ids), logits(model, ids))


def test_mean_and_first_are_those_of_the_parts():
    model = phi(OLD)
    embedding, head, bias = (
        one.detach().clone()
        for one in (model.model.embed_tokens.weight, model.lm_head.weight, model.lm_head.bias)
    )
    resize(model, BASE, NEW, EmbeddingSection(input="mean", head="first"))
    for row, part in zip(FRESH, spell_tokens(BASE, NEW, FRESH), strict=True):
        mean = torch.stack([embedding[number].double() for number in part]).mean(0)
        # A sum of up to four numbers and one division, each rounded in float32.
        bound = 5 * 2**-24 * embedding[part].abs().sum(0).double()
        assert ((model.model.embed_tokens.weight[row].double() - mean).abs() <= bound).all()
        assert torch.equal(model.lm_head.weight[row], head[part[0]])
        assert model.lm_head.bias[row] == bias[part[0]]


def test_mean_resizing_draws_as_transformers_does(made):
    """Both draw with 1e-9 of the covariance around the mean; each from its place in a stream."""
    ours, theirs = made(OLD), made(OLD)
    before = {name: one.clone() for name, one in ours.state_dict().items()}
    resize(ours, BASE, NEW, EmbeddingSection(input="mean-resizing", head="mean-resizing"))
    with quiet_libraries():
        theirs.resize_token_embeddings(OLD + len(MORE))
    assert ours.config.vocab_size == theirs.config.vocab_size
    for name, weight in theirs.state_dict().items():
        assert ours.state_dict()[name].shape == weight.shape, name
        if len(weight) != OLD + len(MORE):
            continue
        old = before[name].double()
        sigma = (1e-9 * old.var(0)).sqrt() + 2**-24 * old.mean(0).abs()
        for model in (ours, theirs):
            apart = model.state_dict()[name][FRESH].double() - old.mean(0)
            # Seven deviations: of all these numbers, once in 10^9.
            assert (apart.abs() <= 7 * sigma).all()
        rows = ours.state_dict()[name][FRESH]
        assert rows.dim() == 1 or not torch.equal(rows[0], rows[1])


@pytest.mark.full
def test_random_is_the_models_own_and_follows_the_seed(tiny):
    def rows(seed: int) -> torch.Tensor:
        model = tiny("llama", vocab_size=OLD, initializer_range=0.5)
        state = torch.get_rng_state()
        resize(model, BASE, NEW, EmbeddingSection(input="random", head="random", seed=seed))
        assert torch.equal(torch.get_rng_state(), state)
        return model.lm_head.weight[FRESH].detach()

    assert torch.equal(rows(1), rows(1))
    assert not torch.equal(rows(1), rows(2))
    # 64 normal numbers of deviation 0.5: its estimate is off by more than a half once in 10^15.
    assert 0.25 < rows(1).std() < 0.75


def test_random_rows_of_ours_are_those_of_a_model_built_with_them():
    sizes = {"width": 16, "layers": 1, "heads": 2, "context": 32}
    model, large = build("llama", vocab=OLD, **sizes), build("llama", vocab=OLD + 4, **sizes)
    resize(model, BASE, NEW, EmbeddingSection(input="random", head="random"))
    assert torch.equal(model.lm_head.weight[FRESH], large.lm_head.weight[FRESH])


@pytest.mark.parametrize(("rows", "wanted"), [(264, 272), (262, 266), (320, 320), (640, 640)])
def test_a_padded_vocabulary_stays_padded(rows, wanted, tiny):
    """264 is a multiple of 8 and leaves no room for four more tokens than 261."""
    model = tiny("llama", vocab_size=rows)
    before, head = logits(model, IDS), model.lm_head.weight.detach().clone()
    found = resize(model, BASE, NEW)
    assert (found.rows, found.padded_before, found.padded) == (wanted, rows - OLD, wanted - 265)
    assert "rows of padding" in found.summary()
    after = logits(model, IDS)
    assert torch.equal(after[..., :OLD], before[..., :OLD])
    assert torch.equal(after[..., OLD + 4 : rows], before[..., OLD + 4 :])
    for row in range(max(rows, OLD + 4), wanted):
        assert torch.equal(model.lm_head.weight[row], head[-1])


def test_padding_says_nothing_of_new_rows_and_its_last_goes_on_where_tokens_are_dropped(tiny):
    model = tiny("llama", vocab_size=320)
    with torch.no_grad():
        model.lm_head.weight[OLD:] = 100 + torch.arange(320 - OLD)[:, None]
    head = model.lm_head.weight.detach().clone()
    kept = [10, 0, *range(20, 60)]
    found = resize(model, BASE, chosen(kept), kept=kept)
    assert (found.rows, found.padded) == (64, 22)
    assert torch.equal(model.lm_head.weight, torch.cat([head[kept], head[-1:].expand(22, -1)]))
    model = tiny("llama", vocab_size=320)
    with torch.no_grad():
        model.lm_head.weight[OLD:] = 100
    resize(model, BASE, NEW, EmbeddingSection(head="mean-resizing"))
    assert (model.lm_head.weight[FRESH] < 1).all()


def test_a_mean_of_few_digits_is_rounded_once(tiny):
    new = words(MERGES)
    new.add_tokens(["被告人"])
    model = tiny("llama", vocab_size=OLD, initializer_range=0.5).to(torch.bfloat16)
    old = model.lm_head.weight.detach().double()
    resize(model, BASE, new, EmbeddingSection(head="mean"))
    (part,) = spell_tokens(BASE, new, [OLD])
    assert len(set(part)) > 2
    assert torch.equal(model.lm_head.weight[OLD], old[part].mean(0).to(torch.bfloat16))


def test_what_does_not_learn_does_not_learn_afterwards(tiny):
    model = tiny("llama", vocab_size=OLD).requires_grad_(False)
    resize(model, BASE, NEW)
    assert not any(one.requires_grad for one in model.parameters())


def test_a_head_with_fewer_rows_than_tokens_is_refused(tiny):
    model = tiny("llama", vocab_size=OLD)
    model.lm_head = torch.nn.Linear(16, 200, bias=False)
    refuses("the base tokenizer has 261 entries and the model 200 rows", resize, model, BASE, NEW)


def test_pruning_slices_rows_and_moves_special_ids(made, tmp_path):
    model = made(OLD)
    model.config.eos_token_id, model.config.bos_token_id = 0, 3
    model.generation_config.eos_token_id = [0, 3]
    model.generation_config.suppress_tokens = [3, 10]
    model.generation_config.begin_suppress_tokens = [3]
    model.generation_config.bad_words_ids = [[10, 3], [10, 20]]
    model.generation_config.pad_token_id = -1  # as of a token that a model lacks
    model.get_input_embeddings().padding_idx = 10
    model.generation_config.temperature = 0.5  # without do_sample, as in many published models
    kept = [10, 0, *range(20, 60)]
    new = chosen(kept)
    model = model.double()
    rows = model.lm_head.weight.detach().clone()
    before = logits(model, torch.tensor([[10, 0, 25]]))
    found = resize(model, BASE, new, kept=kept)
    after = logits(model, torch.tensor([[0, 1, 7]]))
    assert torch.equal(model.lm_head.weight, rows[kept])
    # A product with fewer columns may add its 16 terms in another order.
    assert torch.allclose(after, before[..., kept], rtol=0, atol=32 * 2**-53 * 16)
    assert (found.rows, found.dropped, found.added) == (42, OLD - 42, 0)
    assert (model.config.eos_token_id, model.config.bos_token_id) == (1, None)
    assert model.generation_config.eos_token_id == [1]
    assert model.generation_config.suppress_tokens == [0]
    assert model.generation_config.begin_suppress_tokens is None
    assert model.generation_config.bad_words_ids == [[0, 2]]
    assert model.generation_config.pad_token_id == -1
    assert model.get_input_embeddings().padding_idx == 0
    assert "bos_token_id of the config: 3 is now None" in found.summary()
    model.generation_config.save_pretrained(tmp_path)


def chosen(kept: list[int]) -> PreTrainedTokenizerFast:
    """Some tokens of the base in another order, without merges."""
    strings = token_strings(BASE)
    return bare([strings[number] for number in kept])


def bare(tokens: list[str]) -> PreTrainedTokenizerFast:
    """Byte symbols without merges."""
    made = Tokenizer(models.BPE(vocab={one: place for place, one in enumerate(tokens)}, merges=[]))
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.full
@settings(deadline=None, max_examples=25)
@given(
    st.permutations(range(OLD)).flatmap(
        lambda ids: st.integers(1, OLD).map(lambda size: list(ids[:size]))
    )
)
def test_any_pruning_is_a_choice_of_columns(kept):
    model = build("llama", vocab=OLD, width=8, layers=1, heads=1, context=16)
    head = model.lm_head.weight.detach().clone()
    resize(model, BASE, chosen(kept), kept=kept)
    assert torch.equal(model.lm_head.weight, head[kept])
    assert find_kept_rows(BASE, chosen(kept)) == (None if kept == list(range(OLD)) else tuple(kept))


def test_what_is_kept_is_found_from_the_strings():
    assert find_kept_rows(BASE, NEW) is None
    assert find_kept_rows(BASE, chosen([5, 9, 2])) == (5, 9, 2)
    strings = token_strings(BASE)
    assert find_kept_rows(BASE, bare([strings[5], "new", strings[9]])) == (5, -1, 9)


@pytest.mark.parametrize("rows", [OLD, 320])
def test_tokens_of_the_base_keep_rows_and_part_behind_new_ones(rows, tiny):
    """As where special tokens stand last in both: new tokens come before them."""
    strings = token_strings(BASE)
    old = [*range(1, 240), -1, 250, -1, -1, 0]
    new = bare([strings.get(one, f"Ġ{place}") for place, one in enumerate(old)])
    model = tiny("llama", vocab_size=rows)
    model.config.eos_token_id = 0
    matrices = [model.get_input_embeddings().weight, model.lm_head.weight]
    before = [one.detach().clone() for one in matrices]
    assert find_kept_rows(BASE, new) == tuple(old)
    found = resize(model, BASE, new, kept=old)
    assert (found.added, found.dropped, found.tokens) == (3, OLD - 241, 244)
    assert model.config.eos_token_id == 243
    places = [place for place, one in enumerate(old) if one >= 0]
    for one, now in zip(before, (model.get_input_embeddings(), model.lm_head), strict=True):
        assert torch.equal(now.weight[places], one[[old[place] for place in places]])


@pytest.mark.parametrize("kept", [None, [1]])
def test_a_tokenizer_of_another_kind_is_refused(kept, tiny):
    letters = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
    model = tiny("llama", vocab_size=OLD)
    said = "the new tokenizer writes {}, and the base {}, so that the same string is not"
    refuses(said.format("characters", "bytes"), resize, model, BASE, letters, kept=kept)
    refuses(said.format("bytes", "characters"), resize, model, letters, BASE, kept=kept)
    assert model.config.vocab_size == OLD


def test_the_result_is_told_and_written(tiny):
    found = resize(tiny("gpt2", vocab_size=OLD), BASE, NEW)
    assert isinstance(found, ResizeResult)
    assert found.summary().splitlines() == [
        "261 rows are now 265: 265 tokens",
        "4 new tokens began as mean; the head is tied and follows",
    ]
    assert found.to_dict()["rows"] == 265


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("unknown", [None, "b"])
def test_a_token_that_the_base_cannot_write_is_said(tiny, unknown, added):
    def letters(vocab: dict[str, int]) -> PreTrainedTokenizerFast:
        made = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=unknown))
        return PreTrainedTokenizerFast(tokenizer_object=made)

    base = letters({"a": 0, "b": 1})
    new = letters({"a": 0, "b": 1} if added else {"a": 0, "b": 1, "q": 2})
    if added:
        new.add_tokens(["q"])
    model = tiny("llama", vocab_size=2)
    wanted = model.lm_head.weight.detach().mean(0)
    found = resize(model, base, new, EmbeddingSection(head="first"))
    assert found.orphans == 1
    assert "1 of them cannot be written in older tokens" in found.summary()
    assert torch.equal(model.lm_head.weight[2], wanted)


def test_starts_can_follow_each_other_on_one_model(tiny):
    from layerlab.adaptation.embeddings.resize import Resizing

    model = tiny("llama", vocab_size=OLD)
    resizing = Resizing(model, BASE, NEW)
    for kind in STARTS:
        resizing.carry_out(EmbeddingSection(input=kind, head=kind))
    alone = tiny("llama", vocab_size=OLD)
    resize(alone, BASE, NEW, EmbeddingSection(input="random", head="random"))
    assert torch.equal(model.lm_head.weight, alone.lm_head.weight)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base": NEW}, "the base tokenizer has 265 entries and the model 261 rows"),
        ({"new": chosen([5, 9, 2])}, "the new tokenizer does not extend the base: 260 of its"),
        ({"kept": [5, 9, 3], "new": chosen([5, 9, 2])}, "kept[2] is 3, which the base calls"),
        ({"kept": []}, "kept is empty: no token of the base is left; expected at least one"),
    ],
)
def test_what_does_not_belong_together_is_refused(change, said, tiny):
    given: dict[str, Any] = {"base": BASE, "new": NEW, **change}
    model = tiny("llama", vocab_size=OLD)
    assert said in refusal(resize, model, **given)
    assert model.config.vocab_size == OLD


@pytest.mark.parametrize("name", ["input", "head"])
def test_a_start_that_is_not_known_is_refused(name):
    said = f"{name} is 'zero'; expected 'mean', 'mean-resizing', 'first' or 'random'"
    refuses(said, validate_table, EmbeddingSection, {name: "zero"}, "a test")
    assert get_args(EmbeddingSection.model_fields[name].annotation) == tuple(STARTS)


def test_other_matrices_are_refused(tiny):
    with pytest.raises(UserError, match="in place of an embedding and a linear head; expected"):
        resize(tiny("llama").model, BASE, NEW)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(tiny("llama", vocab_size=OLD).config)
    refuses("not in memory; expected floating-point weights in memory", resize, empty, BASE, NEW)
    stored = tiny("llama", vocab_size=OLD)
    eight = stored.lm_head.weight.detach().to(torch.int8)
    stored.lm_head.weight = torch.nn.Parameter(eight, requires_grad=False)
    refuses(r"is stored as torch\.int8; .* without quantization", resize, stored, BASE, NEW)
