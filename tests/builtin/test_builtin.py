"""The built-in models are what their cards say, and the script that made them is repeatable."""

import math
import re

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from layerlab import UserError, builtin
from tests.support.forked import empty_python
from tools.builtin_models import train

TINY = train.Recipe(
    width=16, layers=2, heads=2, vocab=300, context=16, batch=4, steps=2, warmup=1, interval=1
)
FILES = {
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
CLASSES = {
    "pre-norm": "GPT2LMHeadModel",
    "post-norm": "OpenAIGPTLMHeadModel",
    "llama": "LlamaForCausalLM",
}
every_model = pytest.mark.parametrize("name", builtin.NAMES)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("went to the network"))


def load(name):
    return AutoModelForCausalLM.from_pretrained(
        builtin.path(name), local_files_only=True, use_safetensors=True, dtype=torch.float32
    )


def tokenizer_of(name):
    return AutoTokenizer.from_pretrained(builtin.path(name), local_files_only=True)


def sample():
    return builtin.SAMPLE.read_text(encoding="utf-8")


@every_model
def test_folder_is_complete_and_small(name):
    files = {file.name: file.stat().st_size for file in builtin.path(name).iterdir()}
    assert set(files) == FILES
    assert sum(files.values()) <= 2_000_000


@every_model
def test_loads_offline_from_safetensors(name, offline):
    model, info = AutoModelForCausalLM.from_pretrained(
        builtin.path(name), local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    assert type(model).__name__ == CLASSES[name]
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    assert set(info["missing_keys"]) <= {"lm_head.weight"}
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_arms_have_one_shape():
    configs = [AutoConfig.from_pretrained(builtin.path(name)) for name in builtin.NAMES]
    fields = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "tie_word_embeddings",
    )
    assert len({tuple(getattr(config, field) for field in fields) for config in configs}) == 1


def test_norm_placement_is_all_that_differs_in_the_pair():
    pre, post = load("pre-norm"), load("post-norm")
    # The same function under two names: GPT-1's code maps "gelu" to the tanh form.
    x = torch.linspace(-5, 5, 101)
    assert torch.equal(pre.transformer.h[0].mlp.act(x), post.transformer.h[0].mlp.act(x))
    assert pre.config.layer_norm_epsilon == post.config.layer_norm_epsilon
    rename = {"transformer.wte.": "transformer.tokens_embed.", "wpe.": "positions_embed."}
    shapes = {}
    for key, parameter in pre.named_parameters():
        for old, new in rename.items():
            key = key.replace(old, new)
        shapes[key] = parameter.shape
    for final in ("weight", "bias"):
        del shapes[f"transformer.ln_f.{final}"]
    assert shapes == {key: parameter.shape for key, parameter in post.named_parameters()}


def test_parameter_counts_match_within_a_thousandth():
    counts = [sum(p.numel() for p in load(name).parameters()) for name in builtin.NAMES]
    assert max(counts) - min(counts) <= min(counts) / 1000


def test_tokenizers_are_identical_and_lossless():
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert len({(builtin.path(name) / file).read_bytes() for name in builtin.NAMES}) == 1
    tokenizer = tokenizer_of(builtin.DEFAULT)
    assert tokenizer.decode(tokenizer(sample())["input_ids"]) == sample()
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == 0
    assert len(tokenizer) == AutoConfig.from_pretrained(builtin.path(builtin.DEFAULT)).vocab_size


def test_sample_is_long_and_varied():
    text = sample()
    assert 14_000 <= len(text.encode()) <= 18_000
    assert text.count("\n\n") >= 20
    assert all(piece in text for piece in ("café", "naïve", "北京", "def "))


def test_sample_has_3000_gpt2_tokens(data):
    files = [str(data / "tokenizers" / "gpt2" / file) for file in ("vocab.json", "merges.txt")]
    assert len(ByteLevelBPETokenizer(*files).encode(sample()).ids) >= 3000


@every_model
def test_model_has_learned_english(name):
    model = load(name)
    ids = torch.tensor(tokenizer_of(name)(sample())["input_ids"][: model.config.vocab_size])
    loss = train.nats(model, ids, model.config.max_position_embeddings) / (len(ids) - 1)
    # The sample is modern prose, the training text is not: one nat below uniform is far.
    assert loss < math.log(model.config.vocab_size) - 1


def column_of_card(name, row):
    """Read a number of the comparison that every card shows."""
    card = (builtin.path(name) / "README.md").read_text(encoding="utf-8")
    cells = re.search(rf"^\| {row} \|(.*)\|$", card, flags=re.MULTILINE).group(1).split("|")
    return cells[builtin.NAMES.index(name)].strip(" `")


@pytest.mark.parametrize(
    "name",
    [one if one == "llama" else pytest.param(one, marks=pytest.mark.full) for one in builtin.NAMES],
)
def test_card_is_reproduced_from_stored_weights(name, data):
    model = load(name)
    text = (data / "tinyshakespeare" / "input.txt").read_bytes().decode()
    held_out = text[round(len(text) * (1 - train.Recipe.validation)) :]
    tokens = train.encode(tokenizer_of(name), held_out)
    nats = train.nats(model, tokens, model.config.max_position_embeddings)
    # Half a unit of the last printed digit, and as much again for sums in another order.
    exact = pytest.approx
    bits = nats / math.log(2) / len(held_out.encode())
    assert float(column_of_card(name, "validation, bits per byte")) == exact(bits, abs=1e-4)
    loss = nats / (len(tokens) - 1)
    assert float(column_of_card(name, "validation, nats per token")) == exact(loss, abs=1e-4)


@every_model
def test_card_counts_parameters_and_batches(name):
    count = sum(parameter.numel() for parameter in load(name).parameters())
    assert column_of_card(name, "parameters") == f"{count:,}"
    assert len({column_of_card(other, "hash of all batches") for other in builtin.NAMES}) == 1


def tiny_run(recipe=TINY, progress=None):
    return train.train(sample()[:4000], recipe, progress)[0]


def assert_equal_arms(left, right):
    for one, other in zip(left, right, strict=True):
        assert one.losses == other.losses
        assert one.seen == other.seen
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_training_repeats_bit_by_bit_on_shared_batches():
    arms = tiny_run()
    assert_equal_arms(arms, tiny_run())
    assert [arm.name for arm in arms] == list(builtin.NAMES)
    assert len({arm.seen for arm in arms}) == 1
    assert arms[0].seen != ""


def test_another_seed_gives_other_batches_and_weights():
    other = tiny_run(train.Recipe(**{**vars(TINY), "seed": 2}))
    for one, two in zip(tiny_run(), other, strict=True):
        assert one.seen != two.seen
        assert one.losses != two.losses


def test_an_interrupted_run_continues_where_it_was(tmp_path, monkeypatch):
    advance = train.advance

    def stop_at_second_step(arm, rows, step, recipe):
        if step == 1:
            raise KeyboardInterrupt
        advance(arm, rows, step, recipe)

    monkeypatch.setattr(train, "advance", stop_at_second_step)
    with pytest.raises(KeyboardInterrupt):
        tiny_run(progress=tmp_path / "progress.pt")
    monkeypatch.setattr(train, "advance", advance)
    assert_equal_arms(tiny_run(progress=tmp_path / "progress.pt"), tiny_run())


def test_another_run_is_not_continued(tmp_path):
    tiny_run(progress=tmp_path / "progress.pt")
    with pytest.raises(UserError) as caught:
        tiny_run(train.Recipe(**{**vars(TINY), "seed": 2}), tmp_path / "progress.pt")
    assert str(caught.value) == (
        f"{tmp_path / 'progress.pt'} belongs to another run; expected this recipe and text: "
        f"delete {tmp_path} or choose another --out"
    )


def test_too_short_a_text_is_one_clear_line():
    with pytest.raises(UserError, match="tokens to train on; expected more than one context of 16"):
        train.train("Too short.", TINY)


def test_arms_start_from_the_same_numbers():
    pre, post, llama = (train.build(name, TINY) for name in builtin.NAMES)
    tokens = [model.get_input_embeddings().weight for model in (pre, post, llama)]
    assert torch.equal(tokens[0], tokens[1]) and torch.equal(tokens[0], tokens[2])
    for index in range(TINY.layers):
        one, two = pre.transformer.h[index], post.transformer.h[index]
        for key, value in one.state_dict().items():
            assert torch.equal(value, two.state_dict()[key]), key
        attention = llama.model.layers[index].self_attn
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        joined = torch.cat([part.weight.T for part in parts], dim=1)
        assert torch.equal(joined, one.attn.c_attn.weight)
        assert torch.equal(attention.o_proj.weight.T, one.attn.c_proj.weight)


def test_windows_predict_every_token_once():
    tokens = torch.arange(100)
    for context in (7, 9, 99, 100, 200):
        rows = list(train.windows(tokens, context, batch=3))
        predicted = torch.cat([row[:, 1:].flatten() for row in rows])
        assert torch.equal(predicted, tokens[1:])
        assert all(row.shape[1] <= context + 1 for row in rows)
        for row in rows:
            assert torch.equal(row[:, 1:] - row[:, :-1], torch.ones_like(row[:, 1:]))


def test_batches_hold_the_next_token_as_target():
    tokens = torch.arange(1000)
    rows = train.batch_of(tokens, 0, TINY)
    assert rows.shape == (TINY.batch, TINY.context + 1)
    assert (rows[::2, 0] == 0).all()
    assert (rows[:, 2:] - rows[:, 1:-1] == 1).all()
    # The last token can be reached: nothing of the text is lost at its end.
    short = torch.arange(TINY.context + 1)
    assert train.batch_of(short, 0, TINY)[0, -1] == short[-1]


def test_rate_rises_then_falls_to_the_last_rate():
    recipe = train.Recipe(steps=100, warmup=10, cooldown=20)
    rates = [train.rate_at(step, recipe) for step in range(101)]
    assert max(rates) == rates[9] == recipe.rate
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(recipe.last_rate)


@pytest.mark.full
def test_publishing_fills_the_folders_and_leaves_nothing_else(tmp_path, monkeypatch):
    out = tmp_path / "models"
    train.publish(sample()[:4000].encode(), out, TINY, machine="a test")
    assert [folder.name for folder in tmp_path.iterdir()] == ["models"]
    assert {folder.name for folder in out.iterdir()} == set(builtin.NAMES)
    for name in builtin.NAMES:
        assert {file.name for file in (out / name).iterdir()} == FILES


def test_unknown_name_is_one_clear_line():
    with pytest.raises(UserError) as caught:
        builtin.path("bert")
    assert str(caught.value) == (
        "no built-in model is called 'bert'; expected one of pre-norm, post-norm, llama: "
        "type for example pre-norm"
    )


def test_missing_text_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match=r"--data .*nothing\.txt is not a file; expected a text"):
        train.main(["--data", str(tmp_path / "nothing.txt"), "--out", str(tmp_path)])


def test_the_loader_imports_neither_torch_nor_transformers():
    code = (
        "import sys, layerlab.builtin as b; b.path('llama');"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    empty_python("-c", code, check=True)
