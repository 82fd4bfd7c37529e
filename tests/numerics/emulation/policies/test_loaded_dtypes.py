"""What a model stores in a low dtype, beside what transformers loads in it, on every family."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from layerlab.numerics.emulation.emulate import emulate
from layerlab.numerics.emulation.policies.apply import REAL, apply_precision
from layerlab.numerics.emulation.policies.loaded_dtypes import find_followers, low_precision_weights
from layerlab.numerics.emulation.policies.policy import Policy
from tests.families.recipe import FAMILIES, TOKENS, UNBUILT, build

# A table that follows the default dtype, routers named by the end of their path, a decay that the
# code makes in float32, a configuration inside another, a norm that is given float32.
SAMPLE = ("xglm", "ernie4_5_moe", "hunyuan_v1_moe", "olmo_hybrid", "gemma3", "mamba")
REST = sorted(set(FAMILIES) - set(UNBUILT) - set(SAMPLE))


def words(rows: int = 2) -> Tensor:
    return torch.randint(10, 64, (rows, TOKENS), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model, the same for both formats."""

    @cache
    def save(family: str) -> Path:
        folder = tmp_path_factory.mktemp("family")
        build(family).save_pretrained(folder)
        return folder

    return save


def load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def stored(model: nn.Module) -> dict[str, Tensor]:
    parameters = model.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(model.named_buffers(remove_duplicate=False))}


@pytest.mark.few(2)
@pytest.mark.parametrize("format", ["bf16", pytest.param("fp16", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "family", [*SAMPLE, *(pytest.param(one, marks=pytest.mark.full) for one in REST)]
)
@torch.no_grad()
def test_a_policy_that_keeps_nothing_is_what_transformers_loads(family, format, saved):
    folder = saved(family)
    try:
        theirs = load(folder, REAL[format])
    except ValueError as error:
        assert "Unrecognized configuration class" in str(error)
        pytest.skip("what its model was made of is not loaded as a causal language model")
    ours = apply_precision(load(folder, torch.float32), Policy(format=format))
    mine = stored(ours)
    for name, value in stored(theirs).items():
        assert mine[name].dtype == value.dtype, name
        assert torch.equal(mine[name], value), name
    try:
        given = theirs(input_ids=words(), use_cache=False).logits
    except RuntimeError as error:
        assert "dtype" in str(error) or "scalar type" in str(error)
        pytest.skip("transformers does not run it in this dtype")
    found = ours(input_ids=words(), use_cache=False).logits
    assert found.dtype == given.dtype and torch.allclose(found, given, 0, 0, equal_nan=True)


@torch.no_grad()
def test_positions_that_loading_rounds_err_in_emulation_too(tmp_path):
    build("xglm").save_pretrained(tmp_path)
    model = load(tmp_path, torch.float32)
    exact = model(input_ids=words(8), use_cache=False).logits
    real = load(tmp_path, torch.bfloat16)(input_ids=words(8), use_cache=False).logits - exact
    with emulate(model, "bf16"):
        emulated = model(input_ids=words(8), use_cache=False).logits - exact
    errors = [float(one.norm(dim=-1).median()) for one in (emulated, real)]
    assert errors[0] == pytest.approx(errors[1], rel=0.2)


def test_a_module_that_is_none_of_transformers_is_low_but_for_tables_that_would_lose():
    module = nn.Linear(3, 3)
    module.register_buffer("mask", torch.ones(3), persistent=False)
    module.register_buffer("angles", torch.full((3,), 0.1), persistent=False)
    assert find_followers(module, torch.bfloat16) == {}
    found = low_precision_weights(module, torch.bfloat16, {})
    assert {name: dtype for _, name, _, _, dtype in found} == dict.fromkeys(
        ("weight", "bias", "mask"), torch.bfloat16
    )


def test_a_model_made_of_more_than_its_configuration_is_taken_as_it_is():
    family = type(build("llama"))

    class Wider(family):  # type: ignore[misc,valid-type]
        def __init__(self, config: object, more: int) -> None:
            super().__init__(config)
            self.more = more

    assert find_followers(Wider(build("llama").config, 1), torch.bfloat16) == {}


def test_it_is_made_anew_where_the_configuration_is_another():
    model = build("llama")
    before = find_followers(model, torch.bfloat16)
    assert find_followers(model, torch.bfloat16) is before
    model.config.num_hidden_layers += 1
    assert find_followers(model, torch.bfloat16).keys() > before.keys()
    inner = build("gemma3")
    before = find_followers(inner, torch.bfloat16)
    inner.config.vision_config.num_hidden_layers += 1
    assert find_followers(inner, torch.bfloat16).keys() > before.keys()


def test_making_it_draws_nothing_and_leaves_the_default():
    model, before = build("llama"), torch.get_rng_state()
    dtype, default = model.config.dtype, torch.get_default_dtype()
    made = find_followers(model, torch.float16)
    assert made["lm_head.weight"] and not made["model.rotary_emb.inv_freq"]
    assert made.keys() == stored(model).keys()
    assert torch.equal(torch.get_rng_state(), before)
    assert (model.config.dtype, torch.get_default_dtype()) == (dtype, default)
