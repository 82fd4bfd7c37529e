"""What a plan says that its runs take, against what they take."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from layerlab.console.runs import RunsDisplay
from layerlab.experiments.estimate import startup, step_time
from layerlab.experiments.estimate.estimate import Estimate, _makespan, estimate
from layerlab.experiments.estimate.table import _save
from layerlab.experiments.executors import slots as slots_module
from layerlab.experiments.plan.plan import plan
from layerlab.experiments.session import PreparedRecipe, display
from layerlab.model.cost.cost import account
from layerlab.recipes.training_sections import RunSection
from layerlab.system.hardware import here
from layerlab.training.flops import TokenFlops, peak_of
from layerlab.training.run_spec import design_model
from tests.training.support.planned import EXTENT, recipe, runs, unmeasured  # noqa: F401  its fixture

ALONE: dict[str, Fraction] = {}
SECONDS = st.lists(st.floats(0, 1e3), min_size=1, max_size=20)


@given(SECONDS, st.integers(1, 8))
def test_a_schedule_lies_between_its_bounds(seconds, slots):
    found = _makespan(seconds, [ALONE] * slots, 0.0)
    least = max(max(seconds), sum(seconds) / slots)
    assert least * (1 - 1e-9) <= found <= (2 - 1 / slots) * least * (1 + 1e-9)
    assert math.isclose(_makespan(seconds, [ALONE], 0.0) or 0.0, sum(seconds))
    assert math.isclose(_makespan(seconds, [ALONE], 6.0) or 0.0, 6 + sum(seconds))


@given(SECONDS, st.integers(1, 4), st.integers(1, 12))
def test_no_schedule_gets_more_out_of_cores_than_there_are(seconds, cores, slots):
    found = _makespan(seconds, [{"cpu": Fraction(1, cores)}] * slots, 1.0)
    assert found is not None and found * (1 + 1e-9) >= (slots + sum(seconds)) / cores
    if slots <= cores:
        assert found == _makespan(seconds, [ALONE] * slots, 1.0)


def test_slots_that_share_a_gpu_take_turns_and_the_others_do_not_wait():
    whole = Fraction(1)
    asked = [{"0": whole}, {"3": whole}, {"0": whole}]
    # 0 and 3 begin the first two; the third, beside the first, lets both last twice as long.
    assert _makespan([4.0, 4.0, 4.0], asked, 0.0) == 8
    # The second slot, free after 4 s, takes the fourth run and needs no longer than alone.
    assert _makespan([4.0, 4.0, 4.0, 4.0], asked, 0.0) == 8
    # Once the first has ended, the third has the GPU to itself.
    assert _makespan([2.0, 1.0, 4.0], asked, 0.0) == 6


def test_more_slots_than_cores_or_gpus_do_not_shorten_a_plan(monkeypatch):
    monkeypatch.setattr(slots_module, "cores", lambda: [(0,), (1,)])
    planned = runs(compare={"seeds": [1, 2, 3, 4]})

    def take(count: int, **given: Any) -> Estimate:
        settings = RunSection.model_validate({"max_parallel": count, **given})
        return estimate(planned, settings, measure=False)

    one, two, *more = (take(count) for count in (1, 2, 4, 8))
    assert one.crowded == two.crowded == 1 and [each.crowded for each in more] == [2, 4]
    alone = sum(each.runs * (each.seconds or 0.0) for each in one.sides)
    assert one.seconds == pytest.approx(startup.ASSUMED + alone)
    assert two.seconds == pytest.approx(startup.ASSUMED + alone / 2)
    # Each slot has a process to start, for which there are no more cores either.
    found = [each.seconds for each in more]
    starts = [count * startup.ASSUMED / 2 for count in (4, 8)]
    assert found == [pytest.approx(each + alone / 2, rel=1e-3) for each in starts]
    said = "runs at once share cores or GPUs: each takes up to 2 times as long as alone"
    assert said in drawn(more[0], 120) and "runs at once share" not in drawn(two, 120)
    assert more[0].to_dict()["crowded"] == 2
    threads = take(2, threads=2)
    assert threads.crowded == 2 and (threads.seconds or 0.0) > (one.seconds or 0.0)


def test_an_estimate_adds_up():
    found = estimate(runs(), RunSection(max_parallel=2), measure=False, processes=False)
    assert [side.arm for side in found.sides] == ["llama", "gpt2"]
    assert found.runs == 4 and found.slots == 2
    for side in found.sides:
        assert side.flops == 20 * side.update_tokens * side.token_flops.full
        assert not side.measured and side.mfu == pytest.approx(step_time.ASSUMED)
    assert found.flops == sum(2 * side.flops for side in found.sides)
    one, two = (side.seconds or 0.0 for side in found.sides)
    assert found.seconds == pytest.approx(one + two)  # each slot takes one of each arm
    model = design_model(runs()[0].recipe)
    assert sum(found.sides[0].parameters.values()) == account(model.spec, model.shape).parameters


@pytest.mark.parametrize(("sharding", "copies"), [("none", 2), ("fsdp", 1)])
def test_two_processes_have_two_peaks_and_their_memory(sharding, copies):
    (one,) = estimate(runs()[:1], measure=False).sides
    both = runs(run={"num_processes": 2, "sharding": sharding})
    (two,) = estimate(both[:1], measure=False).sides
    assert one.mfu == pytest.approx(step_time.ASSUMED) and two.mfu == pytest.approx(one.mfu)
    assert one.update_seconds == pytest.approx(2 * (two.update_seconds or 0.0))
    assert two.activations == one.activations  # each has half of the rows
    # Copies have a gradient more; of what is shared each holds a part whole to work on.
    state = one.memory - one.activations
    if sharding == "none":
        assert two.memory - two.activations == copies * state * 5 // 4
    else:
        assert two.memory - two.activations < 2 * state
    assert two.memory == 2 * two.process_memory and one.memory == one.process_memory
    assert "each of the 2 processes of a run takes" in drawn(estimate(both[:1], measure=False), 120)


def test_a_display_holds_a_run_against_the_peaks_of_all_its_processes(tmp_path):
    single, double = (
        PreparedRecipe(recipe=recipe(), runs=(runs(run={"num_processes": count})[0],), out=tmp_path)
        for count in (1, 2)
    )
    with display(single, True) as one, display(double, True) as two:
        assert isinstance(one, RunsDisplay) and isinstance(two, RunsDisplay)
        assert one.peak == 1e11 and two.peak == 2e11


@pytest.mark.parametrize(
    ("processes", "times", "said"), [(1, 1, "once for all"), (2, 2, "of each")]
)
def test_processes_take_time_to_start(processes, times, said, monkeypatch):
    """Each of two slots has two of the four runs, and a process of its own or two."""
    monkeypatch.setattr(slots_module, "cores", lambda: [(number,) for number in range(4)])
    settings = RunSection(max_parallel=2, num_processes=processes)
    with_them = estimate(runs(), settings, measure=False)
    without = estimate(runs(), settings, measure=False, processes=False)
    assert with_them.start == startup.ASSUMED and without.start == 0
    taken = (with_them.seconds or 0) - (without.seconds or 0)
    begins = 2 * startup.ASSUMED / startup.BEGINNING
    assert taken == pytest.approx(times * startup.ASSUMED + begins)
    shown = drawn(with_them, 120)
    assert said in shown and "its start: 6 s" in shown and "beginning and end: 0.5 s" in shown
    assert "left out: what it takes to write checkpoints" in shown


def test_what_no_time_is_counted_for_is_said():
    plain = drawn(estimate(runs(), measure=False), 120)
    watched = runs(evaluate={"prompts": ["a"]}, monitor={"interval": 1})
    more = drawn(estimate(watched, measure=False), 120)
    line = "left out: what it takes to write checkpoints, models and the page"
    assert line in plain and f"{line}," not in plain
    assert f"{line}, to continue the prompts, to read the monitor" in more


def test_what_was_resized_is_said_at_any_width():
    found = estimate(runs(compare={"match": "parameters"}), measure=False)
    match = found.sides[1].match
    assert match is not None and found.sides[0].match is None
    said = f"matched on parameters: gpt2 inner {match.shape.inner}, {match.percent:+.2f} %"
    assert found.to_dict()["arms"][1]["match"]["sizes"]["inner"] == match.shape.inner
    for width in (80, 140):
        shown = drawn(found, width)
        assert said in shown and "layers" in shown.splitlines()[0]
        assert "MORE MEMORY" not in shown
    assert "MORE MEMORY than the 1.00 kB" in drawn(replace(found, room=1000), 80).replace("\n", " ")


def test_a_plan_names_the_parametrization():
    mup = {"max_steps": 20, "parametrization": "mup", "mup_base_width": 16}
    assert "parametrization" not in drawn(estimate(runs(), measure=False), 90)
    found = estimate(runs(train=mup), measure=False)
    assert "parametrization: muP from width 16, heads of 8" in drawn(found, 90)
    assert found.to_dict()["arms"][0]["base"] == {"width": 16, "head_width": 8}
    settings = {"train.parametrization": "mup", "train.mup_base_width": 16}
    other = {"name": "other", "variant": "llama", "set": settings}
    mixed = estimate(runs(compare={"arms": ["llama", other]}), measure=False)
    assert "parametrization: llama standard, other muP from width 16" in drawn(mixed, 90)


def test_a_plan_says_that_compiling_is_not_counted():
    plain = estimate(runs(), measure=False)
    compiled = estimate(runs(train={"max_steps": 20, "torch_compile": True}), measure=False)
    assert compiled.seconds == plain.seconds
    assert "compiling is not counted: minutes for the first run" in drawn(compiled, 160)
    assert "compiling" not in drawn(plain, 160)


def drawn(found: Estimate, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(found.table(width))
    shown = captured.get()
    assert max(map(len, shown.splitlines())) <= width
    return shown


def test_evaluations_take_time_too():
    without = estimate(runs(), measure=False)
    with_all = estimate(runs(), measure=False, validation_tokens=10_000)
    few = runs(evaluate={"max_eval_blocks": 10, "eval_steps": 10})
    with_few = estimate(few, measure=False, validation_tokens=10_000)
    side = with_few.sides[0]
    reading = 3 * 160 / side.update_tokens / 3 * (side.update_seconds or 0.0)
    assert side.seconds == pytest.approx((without.sides[0].seconds or 0.0) + reading)
    assert (with_all.seconds or 0) > (with_few.seconds or 0) > (without.seconds or 0)


def test_a_device_that_is_not_here_leaves_times_open():
    if here("cuda"):
        pytest.skip("there is a GPU here")
    for device in ("cuda", "npu"):
        found = estimate(runs(run={"device": device}))
        assert found.peak is None and found.seconds is None and found.flops > 0
        assert peak_of(recipe(run={"device": device})) is None
        assert "times are unknown: there is no such device here" in drawn(found, 90)


def test_the_table_and_the_json_say_the_same():
    found = estimate(runs(), RunSection(max_parallel=2), measure=False)
    content = json.loads(json.dumps(found.to_dict()))
    assert content["runs"] == 4 and content["arms"][1]["arm"] == "gpt2"
    assert content["arms"][0]["token_flops"]["causal"] < content["arms"][0]["token_flops"]["full"]
    for width in (80, 140):
        shown = drawn(found, width)
        assert "4 runs, 2 at once" in shown and "~ by formula: 40 % of the peak" in shown
        assert ("disk" in shown.splitlines()[0]) == (width > 100)


def test_in_lockstep_one_process_holds_all_arms_at_all_rates():
    def of(**changes: Any) -> Estimate:
        found = runs(compare={"lockstep": True, **changes})
        return estimate(found, RunSection(max_parallel=50), measure=False, lockstep=True)

    one, two = of(), of(learning_rates=[1e-3, 1e-2])
    # In turn: the time is that of all, and no run has a process to start.
    assert one.start == 0 and one.slots == 2 and two.slots == 4
    assert one.seconds == pytest.approx(sum(side.runs * side.seconds for side in one.sides))
    assert two.seconds == pytest.approx(2 * one.seconds)
    state = [side.memory - side.activations for side in one.sides]
    passing = max(side.activations for side in one.sides)
    assert one.memory == sum(state) + passing and two.memory == 2 * sum(state) + passing
    assert two.disk - one.disk > sum(side.checkpoints for side in one.sides)
    assert "4 runs in one process, in lockstep: " in drawn(one, 120)
    short = drawn(replace(one, room=1000), 120).replace("\n", " ")
    assert "that are free here: compare.lockstep = false, or a smaller" in short


def test_a_cluster_carries_out_as_many_as_it_is_allowed():
    def of(**changes: Any) -> Estimate:
        settings = RunSection.model_validate({"executor": "slurm", "max_parallel": 1, **changes})
        return estimate(runs(), settings, measure=False)

    many, two = of(), of(slurm={"parallel": 2})
    assert many.slots == 4 and many.seconds == max(side.seconds or 0.0 for side in many.sides)
    assert two.slots == 2 and two.seconds > many.seconds
    # What is free here is not what is free there.
    assert many.room is None and (estimate(runs(), measure=False).room or 0) > 10**6
    assert "4 runs, 4 at once" in drawn(many, 120)
    assert "times are those of this machine, and nothing waits in the" in drawn(many, 120)


def test_one_run_is_not_several_at_once():
    found = estimate(
        plan(recipe(), EXTENT), RunSection(max_parallel=2), measure=False, processes=False
    )
    shown = drawn(found, 120)
    assert found.slots == 1 and found.memory == found.sides[0].memory
    assert "1 run: " in shown and "at once" not in shown


def test_what_a_mask_saves_is_never_minus_nothing():
    assert (
        _save(TokenFlops(full=1000, causal=999))
        == _save(TokenFlops(full=9, causal=9))
        == "less than 1 %"
    )
    assert _save(TokenFlops(full=1000, causal=870)) == "13 %"
    assert "a causal mask saves" in drawn(estimate(runs(), measure=False), 120)


def test_what_a_mask_saves_is_said_once_where_arms_agree():
    found = estimate(runs(), measure=False)
    half, fewer = TokenFlops(full=100, causal=50), TokenFlops(full=100, causal=70)
    alike = tuple(replace(side, token_flops=half) for side in found.sides)
    assert "a causal mask saves 50 %\n" in drawn(replace(found, sides=alike), 120)
    apart = (replace(alike[0], token_flops=fewer), *alike[1:])
    assert f"saves 30 % ({alike[0].arm}), 50 % (" in drawn(replace(found, sides=apart), 120)


def test_times_of_a_column_have_one_format():
    found = estimate(runs(), measure=False)
    one, two = (
        replace(side, seconds=each) for side, each in zip(found.sides, (9.5, 71.2), strict=True)
    )
    shown = drawn(replace(found, sides=(one, two)), 120)
    assert "~9.5 s" in shown and "~71 s" in shown
    both = tuple(replace(side, measured=True) for side in (one, two))
    assert "9.5 s" in shown and "~" not in drawn(replace(found, sides=both), 120)
