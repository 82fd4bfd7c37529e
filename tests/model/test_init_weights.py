"""What is drawn depends on a parameter's name and the seed, and on nothing else."""

import functools
import hashlib
import json
import os

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from layerlab import UserError
from layerlab.blocks.init import Draw, normal, residual, zeros
from layerlab.blocks.init import starts as starts_of
from layerlab.model.build import build
from layerlab.model.init_weights import draw, stream
from layerlab.model.modeling import LabForCausalLM
from layerlab.variants.registry import variant
from tests.model.exempt import bound
from tests.model.small import SIZES, tokens
from tests.support.forked import python

INNER = 128
DIGESTS = """
import json
from layerlab.model.build import build
from layerlab.variants.registry import variants
from tests.model.test_init_weights import SIZES, digest
print(hash("llama"))
print(json.dumps({name: digest(build(name, **SIZES)) for name in variants()}))
"""

# One of two processes; the other is not there, and not needed to draw.
SHARDED = """
import torch
from torch import distributed
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from layerlab.model.build import build
from tests.model.test_init_weights import SIZES
distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
model = build("pangu-pi", **SIZES, device="meta")
mesh = init_device_mesh("cpu", (2,))
layers = model.model.layers
for number, layer in enumerate(layers):
    layers[number] = fully_shard(checkpoint_wrapper(layer), mesh=mesh)
fully_shard(model, mesh=mesh).to_empty(device="cpu")
model.initialize_weights()
drawn = build("pangu-pi", **SIZES).state_dict()
for name, weight in model.state_dict().items():
    part = weight.to_local()
    assert torch.equal(part, drawn[name].chunk(2)[1]), name
    assert part.numel() < drawn[name].numel()
"""


def digest(model: LabForCausalLM) -> str:
    """One text for all parameters."""
    found = hashlib.blake2b(digest_size=8)
    for name, one in sorted(model.state_dict().items()):
        found.update(name.encode() + one.numpy().tobytes())
    return found.hexdigest()


@functools.cache
def fresh(name: str, seed: int = 0, **options: object) -> LabForCausalLM:
    """A model as it starts; nobody may change it."""
    return build(name, **{**SIZES, **options}, seed=seed)


def parameters(model: LabForCausalLM) -> dict[str, Tensor]:
    return {name: one.detach() for name, one in model.named_parameters()}


def starts(model: LabForCausalLM) -> dict[str, object]:
    """How each parameter starts, where a part says so."""
    return {
        f"{place}.{name}": start
        for place, module in model.named_modules()
        for name, start in getattr(module, "starts", {}).items()
    }


@pytest.mark.parametrize("other", ["llama", "gpt2"])
@pytest.mark.parametrize("name", bound("drawing"))
def test_what_two_variants_share_is_bit_identical(name, other):
    mine = fresh(name, inner=INNER)
    how = variant(name).spec.stack.initialisation
    theirs = fresh(other, inner=INNER, initialisation=how)
    one, two = parameters(mine), parameters(theirs)
    own = {  # a start of the part's own: the identity, a constant
        key
        for key, start in starts(mine).items()
        if start not in (normal, residual, zeros) and key in two
    }
    shared = {key for key in one.keys() & two.keys() - own if one[key].shape == two[key].shape}
    assert "model.embed_tokens.weight" in shared
    different = [key for key in shared if not torch.equal(one[key], two[key])]
    assert different == []
    for key in own & one.keys():  # then it is the same in both, or differs on purpose, by its start
        if starts(theirs).get(key) == starts(mine)[key]:
            assert torch.equal(one[key], two[key])


@pytest.mark.full
def test_every_variant_is_the_same_in_a_fresh_process():
    given = python("-c", DIGESTS)
    assert given.returncode == 0, given.stderr
    salt, found = given.stdout.splitlines()[-2:]
    # Its server has an interpreter of its own, which no hash of this one is the same in.
    assert int(salt) != hash("llama") or "PYTHONHASHSEED" in os.environ
    theirs = json.loads(found)
    names = bound("drawing")
    assert {name: digest(fresh(name)) for name in names} == {name: theirs[name] for name in names}


@pytest.mark.parametrize("name", bound("drawing"))
def test_another_seed_gives_other_numbers_and_the_same_constants(name):
    one, two = (parameters(fresh(name, seed)) for seed in (0, 1))
    constant = {key for key in one if torch.equal(one[key], two[key])}
    drawn = {key for key in one if key.endswith(("query.weight", "embed_tokens.weight"))}
    assert drawn and not drawn & constant
    for key in constant:  # nothing that is constant hides random numbers of a fixed seed
        values = one[key].flatten()
        gaps = values.sort().values.diff().abs()
        assert values.unique().numel() <= 2 + len(values) // 2 or bool((gaps == gaps[0]).all()), key


@pytest.mark.parametrize("name", bound("drawing"))
def test_a_model_built_without_memory_draws_the_same_when_it_gets_some(name):
    built = fresh(name)
    empty = build(name, **SIZES, device="meta")
    assert all(one.is_meta for one in empty.parameters())
    full = LabForCausalLM.from_pretrained(None, config=empty.config, state_dict={})
    theirs = full.state_dict()
    for key, one in built.state_dict().items():
        assert torch.equal(one, theirs[key]), key
    assert torch.equal(built(tokens()).logits, full.eval()(tokens()).logits)


def test_a_process_draws_its_part_of_layers_that_were_wrapped_before():
    done = python("-c", SHARDED)
    assert done.returncode == 0, done.stderr


def test_a_stream_of_numbers_belongs_to_one_name_and_one_seed():
    def first(seed: int, name: str) -> float:
        return float(torch.randn(1, generator=stream(seed, name)))

    assert first(0, "a") == first(0, "a")
    assert len({first(seed, name) for seed in (0, 1) for name in ("a", "b")}) == 4


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("larger", [16, -16])
def test_a_resized_vocabulary_starts_as_that_of_a_model_built_so(head, larger):
    sizes = {**SIZES, "head": head}
    resized = build("llama", **sizes)
    wanted = SIZES["vocab"] + larger
    resized.resize_token_embeddings(wanted, mean_resizing=False)
    built = build("llama", **{**sizes, "vocab": wanted})
    assert resized.config.vocab_size == wanted
    for key, one in parameters(built).items():
        assert torch.equal(one, parameters(resized)[key]), key


def test_a_stack_without_a_head_is_resized_as_with_one():
    whole, bare = build("llama", **SIZES), build("llama", **SIZES).model
    for model in (whole, bare):
        model.resize_token_embeddings(SIZES["vocab"] + 16, mean_resizing=False)
    assert torch.equal(whole.model.embed_tokens.weight, bare.embed_tokens.weight)


def test_ordinary_weights_have_the_standard_deviation_that_the_configuration_says():
    model = build("gpt2", width=192, layers=4, heads=4, vocab=512, context=32)
    std, layers = model.config.initializer_range, model.config.num_hidden_layers
    for key, one in parameters(model).items():
        if one.dim() < 2:
            continue
        scaled = key.endswith(("output.weight", "down.weight"))
        expected = std / (2 * layers) ** 0.5 if scaled else std
        # The sample's standard deviation has a relative error of 1/sqrt(2 n): six of them.
        assert abs(float(one.std()) / expected - 1) < 6 / (2 * one.numel()) ** 0.5, key


def test_the_starts_draw_at_the_scale_that_is_theirs():
    draws = (Draw(generator=stream(0, "x"), std=0.5, residual_std=0.25) for _ in range(2))
    shape = torch.Size((3, 2))
    plain, scaled = normal(shape, next(draws)), residual(shape, next(draws))
    assert torch.equal(plain / 2, scaled)


@pytest.mark.parametrize("name", bound("drawing"))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_is_drawn_does_not_depend_on_the_precision(name, dtype):
    model = fresh(name)
    other = AutoModelForCausalLM.from_config(model.config, dtype=dtype)
    for key, one in parameters(other).items():
        assert one.dtype == dtype
        assert torch.equal(one, parameters(model)[key].to(dtype)), key


@pytest.mark.parametrize("name", bound("drawing"))
def test_what_is_drawn_does_not_depend_on_the_device_around(name):
    """The meta device stands for an accelerator: no generator of the CPU's draws on either."""
    model, again = fresh(name), build(name, **SIZES, seed=1)
    scaled = again.model.spec.stack.initialisation == "depth-scaled"
    with torch.device("meta"):
        for place, module in again.model.named_modules(prefix="model"):
            for one in module.parameters(recurse=False):
                one._is_hf_initialized = False
            draw(module, place, model.config, depth_scaled=scaled)
    for key, one in again.model.named_parameters(prefix="model"):
        assert torch.equal(one, parameters(model)[key]), key


def test_a_start_of_ones_own_draws_alike_in_every_precision_and_place():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.zeros(3, dtype=torch.float64, device="cpu"))
            starts_of(self, gain=lambda shape, draw: torch.randn(shape, generator=draw.generator))

    config, found = fresh("llama").config, []
    for dtype, device in ((torch.float32, "cpu"), (torch.float64, "cpu"), (torch.float32, "meta")):
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                own = Own()
                draw(own, "own", config, depth_scaled=False)
            assert torch.get_default_dtype() == dtype
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(own.gain.detach())
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_of_torch_starts_as_the_norm_alone(kind):
    module = kind(3)
    for one in module.parameters():
        nn.init.constant_(one, 7.0)
    draw(module, "norm", fresh("llama").config, depth_scaled=False)
    assert torch.equal(module.weight, torch.ones(3))
    assert kind is nn.RMSNorm or torch.equal(module.bias, torch.zeros(3))


def test_a_convolution_of_torch_starts_as_a_matrix_does():
    module, config = nn.Conv1d(3, 3, 2), fresh("llama").config
    draw(module, "mix", config, depth_scaled=False)
    numbers = Draw(
        generator=stream(0, "mix.weight"), std=config.initializer_range, residual_std=0.0
    )
    assert torch.equal(module.weight, normal(torch.Size((3, 3, 2)), numbers))
    assert torch.equal(module.bias, torch.zeros(3))


def test_a_parameter_without_a_start_is_named_with_what_to_type():
    module = nn.PReLU()
    with pytest.raises(UserError, match=r"nothing says with which values mix\.weight") as told:
        draw(module, "mix", fresh("llama").config, depth_scaled=False)
    wanted = "of PReLU; expected a start beside it: type starts(self, weight=normal)"
    assert str(told.value).endswith(wanted)
    assert "\n" not in str(told.value)
