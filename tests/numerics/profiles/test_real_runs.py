"""Profiles held against runs by torch itself: to the bit where the order is known, else in size."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Olmo2Config,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from layerlab import builtin
from layerlab.errors import NotApplicable
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.profiles import real_runs
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.numerics.profiles.lanes import Lane
from layerlab.numerics.profiles.profile import NumericsProfile, list_profiles, load_profile
from layerlab.numerics.profiles.real_runs import prepare_model, read_in_chunks, read_real
from layerlab.numerics.profiles.rules import rounding
from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.profiles.token_scores import TokenScores
from tests.support.live_bytes import live_bytes
from tests.support.refused import refusal

STORIES = Path(__file__).resolve().parents[4] / "shared" / "data" / "model-stories260K" / "hf"
VOCABULARY = 500
EXACT = NumericsProfile(name="exact", format="fp32")
# Sums of so few products come out alike in whatever order they are taken.
NARROW, WIDE = 16, 64
# The size of an error is that of the real one within this part.
SIZE = 0.1
REAL = [name for name in list_profiles() if load_profile(name).runs not in ("", "float32")]


SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDE,
    "intermediate_size": 2 * WIDE,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(family: str, width: int = WIDE, layers: int = 4) -> nn.Module:
    torch.manual_seed(0)
    own = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    sizes: dict[str, Any] = SIZES | own
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=16)).eval()
    sizes = {"n_embd": width, "n_layer": layers, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=256, **sizes)).eval()


def draw(count: int = 4, length: int = 128) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator) for _ in range(count)]


def call(model: Any, ids: Tensor) -> Tensor:
    return model(input_ids=ids[None], use_cache=False).logits


def compare(model: nn.Module, pieces: list[Tensor], name: str) -> tuple[Tensor, Tensor]:
    """Errors of the emulated run and of the real one."""
    profile = load_profile(name)
    scores = TokenScores(model, pieces, call)
    exact, emulated = scores.read([Lane(profile=EXACT), Lane(profile=profile)])
    return emulated - exact, read_real(model, pieces, profile, call) - exact


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("scale", [1, 8])
def test_eager_is_emulated_to_the_bit(family, scale):
    model = build(family, NARROW, 2)
    with torch.no_grad():
        for name, one in model.named_parameters():
            # Activations are curved where their arguments are large.
            one.mul_(scale if "mlp" in name else 1)
    emulated, real = compare(model, draw(1), "torch-eager")
    same = (emulated - real).abs() < 1e-6
    assert float(same.double().mean()) > 0.98 and rms(real) > 1e-4


def test_a_real_run_holds_no_second_model_and_few_logits_in_float64(monkeypatch):
    model = build("llama")
    (ids,) = draw(1)
    profile = load_profile("float32")
    whole = read_real(model, [ids], profile, call)
    logits = ids.numel() * VOCABULARY * torch.float32.itemsize
    monkeypatch.setattr(real_runs, "LOGITS", logits // 16)
    with live_bytes(list(model.parameters())) as counted:
        parted = read_real(model, [ids], profile, call)
    assert torch.equal(parted, whole)
    assert counted.peak < 2 * logits < sum(one.nbytes for one in model.parameters())
    kept = zip(model.parameters(), prepare_model(model, "float32").parameters(), strict=True)
    assert all(one.data_ptr() == other.data_ptr() for one, other in kept)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("name", [name for name in REAL if name != "torch-compile"])
def test_errors_have_the_size_of_real_ones(family, name):
    emulated, real = compare(build(family), draw(), name)
    assert rms(emulated) == pytest.approx(rms(real), rel=SIZE)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: `apt-get install g++`")
@pytest.mark.filterwarnings("ignore")  # what torch says while it compiles
@pytest.mark.parametrize(
    ("family", "width", "digits"),
    [
        ("llama", NARROW, 0.8),
        ("gpt2", NARROW, 0.8),
        ("llama", WIDE, 0.3),
        ("qwen3", WIDE, None),
        ("gpt2", WIDE, None),
    ],
)
def test_a_compiled_run_is_known_by_its_errors(family, width, digits):
    """By their digits, too: rounded are the sums that Inductor stores, and only they agree."""
    emulated, real = compare(build(family, width, 2), draw(), "torch-compile")
    explained = 1 - (emulated - real).square().sum() / real.square().sum()
    assert digits is None or explained > digits
    assert width < WIDE or rms(emulated) == pytest.approx(rms(real), rel=SIZE)


@pytest.mark.full
@pytest.mark.skipif(not STORIES.exists(), reason="no stories260K beside the repository")
@pytest.mark.parametrize("name", [name for name in REAL if name != "torch-compile"])
def test_errors_of_a_trained_model_have_the_size_of_real_ones(name):
    model = AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32)
    # Tokens that a trained model writes: on others its errors have long tails.
    torch.manual_seed(0)
    with torch.no_grad():
        start = torch.full((12, 1), 1)
        text = model.generate(start, max_length=257, min_length=257, do_sample=True)
    emulated, real = compare(model, list(text[:, 1:]), name)
    assert rms(emulated) == pytest.approx(rms(real), rel=SIZE)


BRANCHED = {
    "olmo2": lambda: Olmo2Config(**SIZES, pad_token_id=0),
    "gemma3_text": lambda: Gemma3TextConfig(**SIZES, head_dim=16),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("family", BRANCHED)
def test_under_autocast_norms_of_products_give_what_their_code_casts_back_to(family):
    """Norms of queries and of what blocks add read bf16 there, and most end by casting back.

    Seen by the difference from a run in bf16, which casts back there as well.
    """
    torch.manual_seed(0)
    config = BRANCHED[family]()
    config.initializer_range = 0.08
    model = AutoModelForCausalLM.from_config(config).eval()
    pieces, profiles = draw(2), [load_profile(one) for one in ("torch-sdpa", "autocast-bf16")]
    low, mixed = TokenScores(model, pieces, call).read([Lane(profile=one) for one in profiles])
    real = [read_real(model, pieces, one, call) for one in profiles]
    # Norms that do not cast back are 40 % off; processors that multiply in bf16 themselves, 16 %.
    assert rms(mixed - low) == pytest.approx(rms(real[1] - real[0]), rel=2 * SIZE)


@pytest.mark.full
def test_a_tied_head_reads_its_own_rounding_of_the_table():
    """Under autocast the embedding reads the table in float32, and the head in bf16."""
    emulated, real = compare(build("gpt2"), draw(), "autocast-bf16")
    assert 1 - (emulated - real).square().sum() / real.square().sum() > 0


def test_the_sum_before_the_blocks_belongs_to_the_embedding():
    index = OperationIndex(build("gpt2", NARROW, 1))
    assert index.find(OpSite("transformer", "add"), weighted=False) == "embedding"


@pytest.mark.parametrize("sizes", [[1] * 128, [100, 28], [128]])
def test_chunks_read_what_the_whole_text_says(sizes):
    model, ids = build("llama", NARROW, 2), draw(1)[0]
    with torch.no_grad():
        torch.testing.assert_close(read_in_chunks(model, ids, sizes), call(model, ids))


def test_the_model_stays_as_it_is():
    model = build("llama", NARROW, 1).train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    for name in ("torch-eager", "autocast-bf16", "float32", "hf-generate"):
        read_real(model, draw(1, 8), load_profile(name), call)
    assert model.training and next(model.parameters()).dtype == torch.float32
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_what_does_not_run_here_says_why(monkeypatch):
    model, pieces = build("llama", NARROW, 1), draw(1, 8)
    with pytest.raises(NotApplicable, match="nothing here runs as vllm does"):
        read_real(model, pieces, load_profile("vllm"), call)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotApplicable, match="no C\\+\\+ compiler"):
        read_real(model, pieces, load_profile("torch-compile"), call)


def test_a_model_that_torch_refuses_in_bf16_says_so():
    model = AutoModelForCausalLM.from_pretrained(builtin.path("post-norm"))
    ids = torch.arange(5, 13)
    with pytest.raises(NotApplicable, match="torch refuses to run it so: expected m1 and m2"):
        read_real(
            model, [ids], load_profile("torch-eager"), lambda m, i: m(input_ids=i[None]).logits
        )


def test_an_attention_that_the_model_does_not_take_is_not_run_as_another():
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": VOCABULARY}
    falcon = FalconForCausalLM._from_config(
        FalconConfig(num_attention_heads=4, **sizes), attn_implementation="sdpa"
    ).eval()
    pieces = draw(1, 8)
    with pytest.raises(NotApplicable, match="the model keeps its attention, sdpa; load it with"):
        read_real(falcon, pieces, load_profile("torch-eager"), call)
    read_real(falcon, pieces, load_profile("torch-sdpa"), call)
    assert falcon.config._attn_implementation == "sdpa"
    mamba = MambaForCausalLM(MambaConfig(state_size=4, **sizes)).eval()
    with pytest.raises(NotApplicable, match="torch refuses to run it so: Mamba") as caught:
        read_real(mamba, pieces, load_profile("torch-sdpa"), call)
    assert len(str(caught.value)) < 200


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: `apt-get install g++`")
@pytest.mark.filterwarnings("ignore")  # what torch says while it compiles
def test_texts_of_many_lengths_are_compiled_once():
    """And give the digits of those that are compiled for each length."""
    model, profile = build("llama", NARROW, 1), load_profile("torch-compile")
    pieces = [draw(1, length)[0] for length in range(20, 44)]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    together = read_real(model, pieces, profile, call)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    found = together.split([len(one) - 1 for one in pieces])
    for at in (0, 23):
        torch.testing.assert_close(
            read_real(model, [pieces[at]], profile, call), found[at], rtol=0, atol=0
        )


def test_weights_of_a_kernel_are_rounded_before_they_are_divided():
    torch.manual_seed(0)
    scores = 3 * torch.randn(4, 50)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    rounded = powers.bfloat16().float()
    for name, whole in (("unnormalized", powers), ("renormalized", rounded)):
        found = rounding(f"{name} bf16")(scores.softmax(-1))
        wanted = rounded / whole.sum(-1, keepdim=True)
        # Where a power lies beside the middle of two numbers, it may be rounded to the other.
        assert float(((found - wanted).abs() < 1e-6).double().mean()) > 0.98, name


def test_one_in_so_many_results_is_rounded():
    model, pieces = build("llama", NARROW, 2), draw(1)
    wide = NumericsProfile(name="wide", operations={"residual": "fp32"})
    counts = (1, 2, 4, 6)  # of the four sums of two blocks, and what is looked up before
    some = [NumericsProfile(name=f"{count}", every={"residual": count}) for count in counts]
    lanes = [Lane(profile=one) for one in (NumericsProfile(name="all"), wide, *some)]
    every, none, *read = TokenScores(model, pieces, call).read(lanes)
    assert torch.equal(read[0], every) and torch.equal(read[-1], none)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(read, 2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('runs = "fast"', "runs of the profile 'p' is 'fast'; type 'float32' or 'eager'"),
        (
            "[every]\nresidual = 0",
            "every residual of the profile 'p' is 0; expected a whole number",
        ),
        ("[every]\nresidual = 1.5", "is 1.5; expected a whole number of 1 and more"),
        ("[every]\nresiduals = 2", "names the operation 'residuals'; did you mean 'residual'?"),
        ("every = 2", "every in"),
    ],
)
def test_what_a_profile_says_wrongly_of_runs_is_told(text, said, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(text)
    assert said in refusal(load_profile, path)
