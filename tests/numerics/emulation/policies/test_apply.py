"""Policies on real models beside the same policies in emulation, and what they leave behind."""

import copy
from functools import cache

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, Gemma3Config, PreTrainedModel

import layerlab
from layerlab import UserError
from layerlab.numerics.emulation.emulate import emulate, reference
from layerlab.numerics.emulation.policies.apply import (
    REAL,
    apply_precision,
    blocks,
    cast,
    find_kept,
)
from layerlab.numerics.emulation.policies.attention_dtype import PREFIX, implementations
from layerlab.numerics.emulation.policies.policy import Policy
from layerlab.system.model_cache import cache_of, read_on
from tests.measures.family import built
from tests.support.refused import refuses

ATTENTION = "*:attention"
HEARD = ("gpt2", "llama", "gemma2", "qwen3", "mixtral", "deepseek_v3", "gpt_neox", "ours")
# Families whose attention settles its dtypes itself.
PLAIN = ("falcon", "bloom", "mpt", "openai-gpt", "gptj", "xglm")
OWN = ("falcon", "falcon alibi", "bloom", "xglm", "mpt")


@cache
def model(family: str) -> PreTrainedModel:
    if family != "ours":
        return built(family)
    return layerlab.build("llama", width=32, layers=2, heads=4, vocab=64, context=64).eval()


def words(rows: int = 4, tokens: int = 48) -> Tensor:
    return torch.randint(3, 64, (rows, tokens), generator=torch.Generator().manual_seed(3))


@cache
def exact(family: str) -> Tensor:
    with reference(model(family)):
        return model(family)(words()).logits


def low(family: str, policy: Policy) -> PreTrainedModel:
    return apply_precision(copy.deepcopy(model(family)), policy)


def head(family: str) -> str:
    output = model(family).get_output_embeddings()
    return next(name for name, module in model(family).named_modules() if module is output)


def typical(family: str, seen: Tensor) -> float:
    """The median token's error: where a router takes another expert, a token's error is one."""
    error = (seen.double() - exact(family)).norm(dim=-1) / exact(family).norm(dim=-1)
    return float(error.median())


def both(family: str, policy: Policy) -> tuple[float, float]:
    with emulate(model(family), policy.format, policy=policy):
        emulated = model(family)(words()).logits
    with torch.no_grad():
        real = low(family, policy)(words()).logits
    return typical(family, emulated), typical(family, real)


@pytest.mark.few(3)
@pytest.mark.parametrize("keep", ["stream and head", ATTENTION])
@pytest.mark.parametrize("family", HEARD)
def test_emulated_policies_err_as_much_as_real_ones(family, keep):
    names = ("residual", head(family)) if keep != ATTENTION else (keep,)
    emulated, real = both(family, Policy(format="bf16", keep=names))
    assert emulated == pytest.approx(real, rel=0.1)


@pytest.mark.few(2)
@pytest.mark.parametrize("family", OWN)
def test_families_with_their_own_attention_keep_the_stream(family):
    keep = ("residual", head(family))
    emulated, real = both(family, Policy(format="bf16", keep=keep))
    nothing, _ = both(family, Policy(format="bf16"))
    assert emulated == pytest.approx(real, rel=0.1)
    assert real < nothing


@pytest.mark.few(4)
@pytest.mark.parametrize("family", [*HEARD, *PLAIN, "gpt_oss"])
@pytest.mark.parametrize("format", ["bf16", pytest.param("fp16", marks=pytest.mark.full)])
def test_a_policy_that_keeps_nothing_is_the_model_as_transformers_loads_it(
    family, format, tmp_path
):
    own = model(family)
    own.save_pretrained(tmp_path)
    kind = own.config._attn_implementation
    plain = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=REAL[format], attn_implementation=kind
    ).eval()
    with torch.no_grad():
        assert torch.equal(
            plain(words()).logits, low(family, Policy(format=format))(words()).logits
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kept_parameters_are_untouched_and_others_rounded_once(dtype):
    format = "bf16" if dtype == torch.bfloat16 else "fp16"
    policy = Policy(format=format, keep=("residual", "model.layers.1.mlp", "*.q_proj"))
    before = dict(model("llama").named_parameters())
    single = 0
    for name, value in low("llama", policy).named_parameters():
        inside = "layers.1.mlp" in name or "q_proj" in name or "norm" in name
        assert value.dtype == (torch.float32 if inside else dtype), name
        assert torch.equal(value, before[name].to(value.dtype))
        single += inside
    assert 0 < single < len(before)


@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_kept_parameters_that_were_rounded_before_are_remarked_on(format, caplog):
    policy = Policy(format=format, keep=("lm_head",))
    apply_precision(copy.deepcopy(model("llama")), policy)
    assert not caplog.records
    apply_precision(copy.deepcopy(model("llama")).bfloat16(), policy)
    assert "keeps in float32 1 had 16 bits already" in caplog.text


@pytest.mark.parametrize("residual", [False, True])
def test_a_tied_head_takes_its_embedding_along(residual):
    keep = ("lm_head", "residual") if residual else ("lm_head",)
    policy = Policy(format="bf16", keep=keep)
    tied = low("gpt2", policy)
    assert tied.lm_head.weight is tied.transformer.wte.weight
    assert tied.lm_head.weight.dtype == torch.float32
    assert find_kept(model("gpt2"), policy).tied == {"transformer.wte"}
    given = []
    tied.transformer.wte.register_forward_hook(lambda *call: given.append(call[-1].dtype))
    with torch.no_grad():
        assert tied(words()).logits.dtype == torch.float32
    # Its output is the stream, which is kept or not on its own.
    assert given == [torch.float32 if residual else torch.bfloat16]


class Overheard(TorchFunctionMode):
    """The dtypes that fused attention was given."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.scaled_dot_product_attention:
            self.dtypes |= {value.dtype for value in args[:3]}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("keep", [(), (ATTENTION,), ("residual", "model.embed_tokens")])
def test_attention_alone_is_in_float32_or_not_at_all(keep):
    changed = low("llama", Policy(format="bf16", keep=keep))
    with torch.no_grad(), Overheard() as heard:
        changed(words())
    assert heard.dtypes == {torch.float32 if ATTENTION in keep else torch.bfloat16}
    projections = {layer.self_attn.q_proj.weight.dtype for layer in changed.model.layers}
    assert projections == {torch.bfloat16}


@pytest.mark.few(2)
@pytest.mark.parametrize("keep", [("residual",), ("residual", "lm_head", ATTENTION)])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mixtral"])
def test_generation_with_a_cache_goes_on(family, keep):
    changed = low(family, Policy(format="bf16", keep=keep))
    ids = words(1, 12)
    written = changed.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert written.shape == (1, 18) and torch.equal(written[:, :12], ids)
    with torch.no_grad():
        whole = changed(ids, use_cache=False).logits
        first = changed(ids[:, :-1], use_cache=True)
        last = read_on(changed, ids[:, -1:], cache_of(first)).logits
    # Keys and values are the same; only sums may be taken in another order.
    wide = whole[:, -1].double()
    assert float((last[:, -1] - wide).norm() / wide.norm()) < 2.0**-6
    cached = cache_of(first).layers[0]
    assert {cached.keys.dtype, cached.values.dtype} == {torch.bfloat16}


def test_a_model_with_a_policy_is_saved_as_it_is(tmp_path):
    policy = Policy(format="bf16", keep=("residual", "lm_head"))
    changed = low("llama", policy)
    changed.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {name: value.dtype for name, value in stored.items()} == {
        name: value.dtype for name, value in changed.named_parameters()
    }
    assert PREFIX not in (tmp_path / "config.json").read_text("utf-8")
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.equal(apply_precision(again)(words()).logits, changed(words()).logits)


def test_a_model_without_a_policy_of_its_own_needs_one():
    refuses("was saved without a policy", apply_precision, model("llama"))


CARRIED = [
    ({"format": "bf16", "keep": [1]}, r"keep of a policy is \[1\]; expected a list of texts"),
    ({"format": "bf16", "keep": None}, "keep of a policy is None; expected a list of texts"),
    ({"keep": ["lm_head"]}, "no number format is called None"),
    ({"format": "bf16", "keep": "model.nor"}, "^keep='model.nor' matches nothing in this model"),
]


@pytest.mark.parametrize(("carried", "text"), CARRIED)
def test_a_configuration_whose_policy_says_nothing_is_refused(carried, text):
    own = copy.deepcopy(model("llama"))
    own.config.precision_policy = carried
    refuses(text, apply_precision, own)


def test_our_models_carry_their_policy_too(tmp_path):
    sizes = {"width": 16, "layers": 2, "heads": 2, "vocab": 64, "context": 64}
    changed = apply_precision(
        layerlab.build("pangu-pi", **sizes).eval(), Policy(format="bf16", keep=("residual",))
    )
    changed.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.equal(apply_precision(again)(words()).logits, changed(words()).logits)


def traces(module: nn.Module) -> list[object]:
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return [
        (name, sorted(part.__dict__), [len(getattr(part, hook)) for hook in hooks])
        for name, part in module.named_modules()
    ]


@pytest.mark.parametrize("family", ["llama", "bloom", "ours"])
@pytest.mark.parametrize("fails", [False, True])
def test_cast_leaves_no_trace(family, fails):
    own = model(family)
    keep = ("residual",) if family == "bloom" else ("residual", ATTENTION)
    before, name = traces(own), own.config._attn_implementation
    values = {key: value.clone() for key, value in own.state_dict().items()}
    try:
        with cast(own, Policy(format="bf16", keep=keep), torch.bfloat16) as found:
            assert found.residual and traces(own) != before
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert traces(own) == before and own.config._attn_implementation is name
    assert all(torch.equal(values[key], value) for key, value in own.state_dict().items())


def test_attention_of_inner_configurations_is_put_back_as_it_was():
    config = Gemma3Config()
    asked = {"": "sdpa", "text_config": "sdpa", "vision_config": "eager"}
    config._attn_implementation = asked
    found = implementations(config)
    assert found == asked
    config._attn_implementation = "other"
    config._attn_implementation = found
    assert implementations(config) == asked


def test_blocks_are_those_of_the_outermost_list():
    assert blocks(model("mixtral")) == ["model.layers.0", "model.layers.1"]


MISTAKES = [
    ("bloom", (ATTENTION,), "bf16", "asks transformers' AttentionInterface for its attention, so"),
    ("llama", ("model.layer.*.mlp",), "bf16", "^keep='model.layer.*mlp' matches nothing in this"),
    ("llama", ("model.norm:attention",), "bf16", "keep the whole module instead"),
    ("llama", ("*.self_attn:softmax",), "bf16", "names an operation, and no operation can be kept"),
    ("llama", ("lm_head:product",), "bf16", "modules by their path, as 'lm_head', and their atten"),
    ("llama", (), "fp8_e4m3", r"others can be emulated: with layerlab.emulate\(model, 'fp8_e4m3'"),
    ("llama", (), "fp8_e4m3", "torch computes in no fp8_e4m3: a policy for bf16 or fp16 can"),
]


@pytest.mark.parametrize(("family", "keep", "format", "text"), MISTAKES)
def test_a_policy_that_cannot_be_applied_changes_nothing(family, keep, format, text):
    own = copy.deepcopy(model(family))
    refuses(text, apply_precision, own, Policy(format=format, keep=keep))
    assert traces(own) == traces(model(family))
    assert {value.dtype for value in own.parameters()} == {torch.float32}


def test_a_policy_is_taken_from_its_file_too(tmp_path):
    Policy(format="bf16", keep=("lm_head",)).save(tmp_path / "policy.toml")
    for path in (tmp_path / "policy.toml", str(tmp_path / "policy.toml")):
        changed = apply_precision(copy.deepcopy(model("llama")), path)
        assert changed.lm_head.weight.dtype == torch.float32 and changed.dtype == torch.bfloat16
    with pytest.raises(UserError, match="cannot read the policy 'missing"):
        apply_precision(copy.deepcopy(model("llama")), "missing.toml")


def test_a_policy_is_applied_once():
    changed = low("llama", Policy(format="bf16"))
    with pytest.raises(UserError, match="this model has a policy already, and what it rounded"):
        apply_precision(changed, Policy(format="bf16", keep=("residual",)))
    with (
        pytest.raises(UserError, match="load the model anew"),
        emulate(changed, "bf16", policy=Policy(format="bf16")),
    ):
        changed(words())


def test_flash_attention_cannot_be_kept():
    own = copy.deepcopy(model("llama"))
    own.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(UserError, match="computes in no float32; load the model with attn_imp"):
        apply_precision(own, Policy(format="bf16", keep=(ATTENTION,)))


def test_a_stream_needs_blocks():
    single = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(UserError, match="this model has no list of blocks, so no residual"):
        apply_precision(single, Policy(format="bf16", keep=("residual",)))
    assert {value.dtype for value in single.parameters()} == {torch.float32}
