"""The attribution of a difference: it closes, names what was planted, is verified by a run."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from layerlab import UserError
from layerlab.loading.model import load_model
from layerlab.numerics.emulation import unfused_attention
from layerlab.numerics.profiles.gap import BEHIND, CLOSED, EXPERTS, FORWARDS, find_gap
from layerlab.numerics.profiles.gap_result import RunGap, advise
from layerlab.numerics.profiles.lanes import Lane
from layerlab.numerics.profiles.operations import OPERATIONS
from layerlab.numerics.profiles.profile import NumericsProfile, load_profile
from layerlab.numerics.profiles.token_scores import TokenScores
from tests.families.recipe import FAMILIES, UNBUILT, build

IDS = torch.arange(5, 29)
EAGER = load_profile("torch-eager")


def call(model: nn.Module, ids: Tensor) -> Any:
    return model(input_ids=ids[None], use_cache=False).logits


def gap(family: str, a: str | NumericsProfile, b: str | NumericsProfile) -> RunGap:
    model = build(family)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # weights of norms are all one otherwise, and round nothing
                parameter.mul_(1 + torch.rand_like(parameter))
    return find_gap(model, [IDS], load_profile(a), load_profile(b), call=call)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "mixtral", "gpt2", "qwen3"])
@pytest.mark.parametrize("b", ["torch-compile", "autocast-bf16", "torch-sdpa", "float32"])
def test_shares_add_up(family, b):
    found = gap(family, "torch-eager", b)
    assert 0.9 < found.closure < 1.1 and 0.9 < found.layer_closure < 1.1
    assert 0.9 < found.component_closure < 1.1
    assert found.forwards <= FORWARDS
    assert found.remedies[-1].rms == 0, "with all taken back both do the same"
    experts = sum(one.share for one in found.operations if one.name == EXPERTS)
    causes = sum(one.share for one in found.causes)
    assert found.echo + causes + experts == pytest.approx(found.closure)


@pytest.mark.full
@pytest.mark.parametrize("rounds", [{}, {"cache": "int8"}])
def test_few_heads_at_a_time_leave_every_share_as_it_is(monkeypatch, rounds):
    b = NumericsProfile(
        name="b", operations=rounds, every={"scores": 3}, sums={"head": "bf16 tree 4"}
    )
    whole = gap("llama", EAGER, b)
    # Of all runs side by side the scores of one head; of the first two, those of all.
    monkeypatch.setattr(unfused_attention, "SCORES", 2 * 40 * len(IDS) ** 2 * 2)
    assert gap("llama", EAGER, b) == whole


@pytest.mark.full
@pytest.mark.parametrize("name", ["pre-norm", "post-norm", "llama"])
def test_a_question_about_a_trained_model_takes_no_more_passes(name):
    model = load_model(name).model
    for b in ("torch-compile", "autocast-bf16"):
        found = find_gap(model, [IDS], EAGER, load_profile(b), call=call)
        assert found.forwards <= FORWARDS
        assert 0.9 < found.closure < 1.1 and 0.9 < found.layer_closure < 1.1


@pytest.mark.full
def test_many_layers_are_told_apart_in_groups_when_passes_run_out():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = MixtralConfig(
        vocab_size=64, num_hidden_layers=14, num_local_experts=4, **sizes, num_key_value_heads=2
    )
    model = MixtralForCausalLM(config).eval()
    found = find_gap(model, [IDS], EAGER, load_profile("autocast-bf16"), call=call)
    assert found.forwards <= FORWARDS and 0.9 < found.layer_closure < 1.1
    grouped = [one.name for one in found.layers if one.name.startswith("layers")]
    assert 1 <= len(grouped) < 14
    assert grouped[0].startswith("layers 0 to") and grouped[-1].endswith("to 13")


@pytest.mark.full
def test_what_is_left_has_the_experts_that_are_found_then():
    torch.manual_seed(0)
    model = build("mixtral")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    b = NumericsProfile(name="b", operations={"router": "fp8_e4m3", "factors": "fp8_e4m3"})
    found = find_gap(model, [IDS], EAGER, b, call=call)
    assert found.choices.changed, "or the test says nothing"
    assert found.echo < 1 - sum(one.share for one in found.operations if one.name == EXPERTS)
    for remedy in (found.remedies[0], *found.alone):
        profile = b
        for operation in remedy.operations:
            profile = profile.take_back(operation, EAGER)
        left = find_gap(model, [IDS], EAGER, profile, call=call).difference.rms
        assert remedy.rms == pytest.approx(left, rel=1e-6)


@pytest.mark.full
def test_where_shares_do_not_add_up_pairs_take_what_passes_are_left():
    coarse = NumericsProfile(name="coarse", format="t3")
    found = find_gap(load_model("llama").model, [IDS], EAGER, coarse, call=call)
    assert abs(found.closure - 1) > CLOSED
    assert found.pairs and found.forwards <= FORWARDS


# What a component's errors are made of, where the operation alone does not say it.
PLACED = {
    "norm_cast": "norms",
    "scores": "attention",
    "rotary": "attention",
    "gate": "feed-forward",
    "residual": "residual stream",
    "head": "LM head",
    "embedding_weights": "embedding",
}


@pytest.mark.full
@pytest.mark.parametrize("name", PLACED)
def test_a_component_has_the_share_of_its_operations(name):
    format = {"scores": "fp8_e5m2", "embedding_weights": "fp8_e5m2"}.get(name, "fp32")
    changed = NumericsProfile(name="changed", operations={name: format})
    found = gap("llama", "torch-eager", changed)
    check_first(found, name)
    parts = {one.name: one for one in found.components}
    assert [one.name for one in found.components if one.differs] == [PLACED[name]]
    assert found.component_closure == pytest.approx(found.closure)
    own = {"norms": ("norm_inside", "norm_cast", "norm", "norm_weights"), "LM head": ("head",)}
    if PLACED[name] in own:
        shares = {one.name: one.share for one in found.operations}
        whole = sum(shares.get(one, 0) for one in own[PLACED[name]])
        assert parts[PLACED[name]].share == pytest.approx(whole)
    assert "component" in str(found)


@pytest.mark.full
def test_what_is_projected_belongs_to_where_it_is_projected():
    changed = NumericsProfile(name="changed", operations={"weights": "fp8_e4m3"})
    found = gap("mixtral", "torch-eager", changed)
    apart = {one.name for one in found.components if one.differs}
    assert apart == {"attention", "feed-forward"}
    assert {one.name for one in found.operations if one.differs} == {"weights"}
    found = gap("llama", "torch-eager", changed)
    assert {one.name for one in found.components if one.differs} == apart
    parts = {one.name: one.rms for one in found.components}
    assert parts["attention"] > 0 and parts["feed-forward"] > 0


@pytest.mark.full
@pytest.mark.parametrize("family", ["mixtral", "gpt2", "llama"])
@pytest.mark.parametrize("what", ["weights", "factors"])
def test_a_head_and_a_router_may_be_kept_as_they_are(family, what):
    """As engines do that quantize the other products; the head of GPT-2 is its embedding."""
    components = {"head": "LM head", "router": "router"}
    for part in components if family == "mixtral" else ("head",):
        name = f"{part}_{what}"
        changed = NumericsProfile(name="changed", operations={name: "fp8_e4m3"})
        found = gap(family, "torch-eager", changed)
        assert found.difference.rms > 0 and [one.name for one in found.causes] == [name]
        assert [one.name for one in found.components if one.differs] == [components[part]]


@pytest.mark.full
def test_what_bounds_logits_belongs_to_the_head():
    changed = NumericsProfile(name="changed", operations={"head": "fp8_e4m3"})
    found = gap("gemma2", "torch-eager", changed)
    assert [one.name for one in found.causes] == ["head"]
    behind = next(one for one in found.layers if one.name == BEHIND)
    assert behind.share == pytest.approx(1, abs=1e-6)


# Each changes one thing of what eager bf16 does, beside those that are `PLACED`.
PLANTED = {
    **{name: "fp32" for name in ("norm", "projection", "rotary_tables", "activation", "context")},
    **{name: "fp32" for name in ("softmax", "norm_input")},
    **{name: "bf16" for name in ("norm_inside", "log_softmax")},
    **{name: "fp8_e4m3" for name in ("weights", "factors", "cache", "queries", "norm_weights")},
    "attention_weights": "fp8_e5m2",
}


SUMS = [
    ("llama", "projection", "bf16 split-k 4"),
    ("llama", "projection", "t14 sequential 8, fp32 sequential 32"),
    ("llama", "head", "fp16 sequential 16"),
    ("llama", "scores", "fp16 sequential 4"),
    ("llama", "context", "bf16 tree 4"),
    ("llama", "softmax", "bf16 tree 1"),
    ("llama", "norm_inside", "bf16 tree 1"),
    ("gpt2", "norm_inside", "bf16 tree 1"),
    ("gpt2", "projection", "bf16 split-k 2"),
    ("mixtral", "projection", "fp16 sequential 16"),
    ("mixtral", "router", "bf16 split-k 2"),
]


@pytest.mark.full
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_named_first(name):
    check_first(gap("llama", "torch-eager", changed({name: PLANTED[name]})), name)


@pytest.mark.full
@pytest.mark.parametrize(("family", "name", "said"), SUMS)
def test_a_planted_order_of_sums_is_named_first(family, name, said):
    found = gap(family, "torch-eager", changed({}, {name: said}))
    check_first(found, name)
    assert 0.9 < found.closure < 1.1 and found.to_dict()["b"]["sums"] == {name: said}
    assert found.causes[0].rms > 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["projection", "head", "context"])
def test_coarse_sums_are_named_before_what_else_differs(name):
    found = gap("llama", "torch-eager", changed({"gate": "fp32"}, {name: "t3 split-k 4"}))
    assert [one.name for one in found.causes] == [name, "gate"]
    assert found.operations[0].name == name, "before roundings that came out otherwise, too"
    assert found.first is not None and found.first.operations == (name,)


def changed(operations: dict[str, str], sums: dict[str, str] | None = None) -> NumericsProfile:
    return NumericsProfile(name="changed", operations=operations, sums=sums or {})


def check_first(found: RunGap, name: str) -> None:
    assert found.causes[0].name == name
    assert found.first is not None and found.first.operations == (name,)
    assert found.first.rms == 0


@pytest.mark.full
def test_of_a_coarse_and_a_fine_difference_the_coarse_one_is_named_first():
    several = {"cache": "fp8_e5m2", "norm_cast": "fp32", "gate": "fp32"}
    found = gap("llama", "torch-eager", changed(several))
    assert found.first is not None and found.first.operations == ("cache",)
    assert found.first.rms < found.difference.rms / 2
    said = f"set `cache` in b as in a: RMS {found.difference.rms:.2g} nats becomes "
    assert f"{said}{found.first.rms:.2g}, as a run shows; this makes" in str(found)
    assert f"this makes {found.causes[0].share:.0%} of the squared difference" in advise(found)


def test_the_same_profile_twice_is_no_difference():
    found = gap("llama", "torch-eager", "torch-eager")
    assert found.difference.largest == 0 and found.operations == () and found.first is None
    assert "the same to the bit" in str(found)


def test_profiles_that_say_the_same_are_not_said_to_run_alike():
    found = gap("llama", "torch-sdpa", "hf-generate")
    assert found.difference.largest == 0 and "to the bit" not in str(found)
    assert "both profiles say the same; real runs of the two may differ all the same" in str(found)


@pytest.mark.full
def test_of_one_change_roundings_that_both_do_are_told_too():
    single = NumericsProfile(name="single", operations={"norm_cast": "fp32"})
    found = gap("llama", "torch-eager", single)
    assert found.echo > 0.5
    assert f"; {found.echo:.0%} are roundings that both do" in advise(found)


@pytest.mark.full
@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3"])
def test_only_a_choice_of_experts_is_counted(family):
    """Attention with sinks takes a maximum, and groups of experts are chosen before experts are."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    own: dict[str, Any] = {"num_local_experts": 4, "head_dim": 16}
    if family == "deepseek_v3":
        own = {"n_routed_experts": 4, "n_group": 2, "topk_group": 2, "first_k_dense_replace": 0}
        own |= {"kv_lora_rank": 16, "q_lora_rank": 16, "moe_intermediate_size": 16}
        own |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    ids = torch.randint(64, (40,), generator=torch.Generator().manual_seed(0))
    for taken in (4, 2):
        config = AutoConfig.for_model(
            family,
            vocab_size=64,
            num_experts_per_tok=taken,
            num_attention_heads=2,
            num_key_value_heads=2,
            **sizes,
            **own,
        )
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        profiles = map(load_profile, ("torch-eager", "autocast-bf16"))
        found = find_gap(model, [ids], *profiles, call=call)
        assert found.choices.total == len(ids) * sizes["num_hidden_layers"]
        assert taken == 2 or found.choices.changed == 0


@pytest.mark.full
def test_experts_that_change_are_a_part_of_their_own():
    coarse = NumericsProfile(name="coarse", operations={"router": "t2"})
    found = gap("mixtral", "torch-eager", coarse)
    assert 0 < found.choices.changed < found.choices.total
    assert EXPERTS in {one.name for one in found.operations}
    assert 0.9 < found.closure < 1.1
    assert gap("llama", "torch-eager", "torch-sdpa").choices.total == 0


@pytest.mark.full
def test_tokens_whose_experts_change_have_their_share_of_the_difference():
    coarse = NumericsProfile(name="coarse", operations={"router": "t3"})
    scores = TokenScores(model := build("mixtral"), [IDS, IDS[:9]], call)
    pair = [Lane(profile=EAGER), Lane(profile=coarse)]
    mine, _ = scores.read(pair)
    found = find_gap(model, [IDS, IDS[:9]], EAGER, coarse, call=call)
    apart = (scores.read_alone(pair[1], lambda *seen: None) - mine).square()
    at = scores.rerouted
    assert len(at) == found.choices.tokens == found.difference.tokens
    assert 0 < int(at.sum()) == found.choices.tokens_changed < found.choices.changed
    assert found.choices.share == pytest.approx(float(apart[at].sum() / apart.sum()))
    assert found.choices.tokens_expected == pytest.approx(found.choices.tokens_changed, rel=0.5)
    told = dict(line.split("  ", 1) for line in str(found).splitlines() if "  " in line)
    share = found.choices.tokens_changed / found.choices.tokens
    assert told["tokens whose experts change"].strip() == f"{share:.2%} of the tokens"
    assert "of the choices" in told["choices of experts that change"]
    (experts,) = (one.share for one in found.operations if one.name == EXPERTS)
    assert f"experts chosen otherwise make {experts:.0%} of the squared difference" in advise(found)


@pytest.mark.full
def test_every_number_of_the_text_has_its_name_and_unit():
    found = gap("llama", "torch-eager", "autocast-bf16")
    lines = str(found).splitlines()
    for value in found.difference.values:
        (line,) = (one for one in lines if one.startswith(value.name))
        assert line.endswith(str(value))
    assert found.difference.kl_ab is not None
    assert any("KL divergence (a || b)" in one and one.endswith(" nats") for one in lines)
    cast = next(one for one in lines if one.startswith("rotary_tables "))
    assert cast.split()[3:] == ["bf16", "unless", "widened", "fp32"]
    assert "unless widened: except where the model's code casts to float32" in lines


@pytest.mark.full
def test_a_layer_takes_its_share():
    model = build("llama")
    found = gap("llama", "torch-eager", "autocast-bf16")
    names = [one.name for one in found.layers]
    layers = [f"layer {number}" for number in range(model.config.num_hidden_layers)]
    assert names == ["embedding", *layers, "behind the blocks"]


@pytest.mark.full
def test_json_has_the_closure_at_the_top():
    found = gap("llama", "torch-eager", "torch-eager").to_dict()
    assert json.loads(json.dumps(found, allow_nan=False))["closure"] is None
    found = gap("llama", "torch-eager", "torch-sdpa").to_dict()
    assert found["closure"] == pytest.approx(1, abs=0.1)
    assert {one["name"] for one in found["operations"]} <= set(OPERATIONS)


@pytest.mark.full
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_without_finite_numbers_is_one_line(value):
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.fill_(value)
    with pytest.raises(UserError, match="under torch-eager the log-probabilities of 23 of 23"):
        find_gap(model, [IDS], EAGER, load_profile("torch-sdpa"), call=call)


@pytest.mark.full
@pytest.mark.parametrize("family", [one for one in FAMILIES if one not in UNBUILT])
def test_every_family_closes_or_tells_why_not(family):
    try:
        found = gap(family, "torch-eager", "torch-compile")
    except UserError as error:
        assert "runs side by side cannot follow" in str(error)
        return
    if found.operations and not 0.9 < found.closure < 1.1:
        assert found.pairs, "what does not add up is told in pairs"
