"""In what an arm differs from its baseline: every slot and option, and what is no difference."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.blocks.part import SLOTS
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.plan.factors import (
    Factor,
    begun_models,
    factors,
    places,
    planned_factors,
    together,
    warn_of_many_slots,
)
from layerlab.model.cost.cost import account
from layerlab.model.design import Design, design
from layerlab.records.run import RunRecord
from layerlab.training.run_spec import design_model
from layerlab.variants.registry import variants
from tests.training.support.drawn import recipe, record, records, runs

NAMES = st.sampled_from(sorted(variants()))
LOSSES = {1: 3.0, 2: 3.3, 3: 3.1}
PLACEMENT = {"name": "post", "variant": "llama", "options": {"placement": "post"}}


def pair(own: str, base: str = "llama", **options: object) -> list[Factor]:
    return factors(design(own, options=options), design(base))


@given(NAMES, NAMES)
def test_exactly_what_differs_between_two_specs_is_named(one, other):
    own, base = design(one), design(other)
    found = factors(own, base)
    for slot in SLOTS:
        same = getattr(own.spec.block, slot) == getattr(base.spec.block, slot)
        if slot == "norm":
            same = same and own.spec.block.placement == base.spec.block.placement
        assert same == (slot not in {factor.place for factor in found})
    assert {factor.option for factor in found if factor.place == "size"} == {
        name for name, size in vars(own.shape).items() if size != getattr(base.shape, name)
    }
    # Seen from the other side, both values change places.
    assert {(f.place, f.option, str(f.against), str(f.arm)) for f in found} == {
        (f.place, f.option, str(f.arm), str(f.against)) for f in factors(base, own)
    }


def test_an_option_is_named_with_both_values_and_a_default_is_no_difference():
    assert pair("llama", placement="both") == [
        Factor(place="norm", option="placement", arm="both", against="pre")
    ]
    assert pair("llama", **{"attention.bias": "none"}) == []
    [bias] = pair("llama", **{"attention.bias": "all"})
    assert (bias.place, bias.option, bias.arm, bias.against) == ("attention", "bias", "all", "none")
    siaf, terms = pair("llama", ffn="siaf", n=3)
    assert (siaf.option, siaf.arm, siaf.against) == (None, "siaf", "swiglu")
    assert (terms.place, terms.option, terms.arm, terms.against) == ("ffn", "n", 3, None)


def test_norms_of_the_stack_count_only_where_they_leave_those_of_the_blocks():
    def differs(arm: dict[str, object]) -> dict[str, object]:
        return planned_factors(small := recipe("llama", arm), runs(small))[1]["differs"]

    followed = differs({"name": "layer", "variant": "llama", "options": {"norm": "layer"}})
    assert followed["slots"] == ["norm"] and followed["stack"] == []
    assert {one["option"] for one in followed["factors"]} == {None, "final_norm"}
    assert places(followed) == ["norm"] and together(followed) == ""
    kept = {"norm": "layer", "final_norm": "rms"}
    own = differs({"name": "own", "variant": "llama", "options": {**kept, "embedding_norm": "rms"}})
    assert own["stack"] == ["embedding_norm"] and places(own) == ["norm", "stack"]


def test_a_plan_tells_parameters_and_flops_before_anything_runs():
    small = recipe(
        "llama", "gpt2", {"name": "wide", "variant": "llama", "set": {"model.inner": 48}}
    )
    base, row, wide = planned_factors(small, runs(small))
    assert base["differs"] is None
    models = [design_model(run.recipe) for run in runs(small)[:2]]
    one, other = (account(found.spec, found.shape) for found in models)
    found = row["differs"]["parameters"]
    assert (found["arm"], found["against"]) == (other.parameters, one.parameters)
    assert found["difference"] == other.parameters - one.parameters
    assert found["percent"] == pytest.approx(100 * (other.parameters / one.parameters - 1))
    assert row["differs"]["flops"]["difference"] == other.forward - one.forward
    assert wide["differs"]["slots"] == wide["differs"]["stack"] == []
    assert wide["differs"]["flops"]["difference"] == 2 * 2 * 3 * 16 * 16  # layers, FMA, matrices
    json.dumps([base, row, wide], allow_nan=False)
    assert planned_factors(small.change({"compare": None}), runs(small)) == []


def test_one_slot_is_no_remark_and_several_are():
    small = recipe("llama", PLACEMENT, "gpt2")
    rows = planned_factors(small, runs(small))
    (said,) = warn_of_many_slots(rows)
    assert said.endswith("counts: gpt2 (norm, attention, ffn, stack)")
    assert "post" not in said and together(rows[1]["differs"]) == ""
    assert "norm, attention, ffn, stack at once" in together(rows[2]["differs"])
    assert list(warn_of_many_slots(rows[:2])) == []


def test_runs_that_are_judged_are_told_apart_by_their_manifests():
    small = recipe("llama", PLACEMENT, "gpt2")
    found = compare_runs(small, records(small, {arm: LOSSES for arm in ("llama", "post", "gpt2")}))
    assert [row["arm"] for row in found.rows if row["differs"] is None] == ["llama"]
    assert found.row("post")["differs"]["slots"] == ["norm"]
    assert found.row("gpt2")["differs"]["parameters"]["difference"] == 0  # as the manifests say
    assert together(found.row("gpt2")["differs"]) in found.row("gpt2")["said"]
    assert "at once" not in found.row("post")["said"]
    assert sum(one.startswith("more than one part") for one in found.content["remarks"]) == 1


def test_a_model_that_is_not_known_here_is_no_failure():
    small = recipe("llama", "gpt2")
    one, other = (record(run, 3.0) for run in runs(small)[:2])
    manifest = {**one.manifest, "recipe": {**one.manifest["recipe"], "model": {"variant": "gone"}}}
    found = begun_models([RunRecord(manifest=manifest), other])
    assert found["llama"] is None and isinstance(getattr(found["gpt2"], "design", None), Design)
