"""What runs cost: FLOPs against published counts, estimates against what was then measured."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from layerlab import UserError
from layerlab.model.account import account
from layerlab.training import calibration, cost, start
from layerlab.training.calibration import Pace, here, paced
from layerlab.training.cost import (
    Estimate,
    Work,
    _makespan,
    equal_time,
    estimate,
    peak_of,
    slots_of,
    updates_for_time,
    utilisation,
    work,
)
from layerlab.training.plan import Extent, Run, arms, designed, plan
from layerlab.training.recipe import Recipe, recipe_of
from layerlab.training.section import RunSection
from layerlab.variants.inventory import variants

EXTENT = Extent(vocab=300, tokens=10_000, digest="d")
SIZES = {"width": 32, "layers": 2, "heads": 2, "context": 16}


def recipe(model: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    given: dict[str, Any] = {"model": {**SIZES, **(model or {})}, "train": {"updates": 20}}
    return recipe_of({**given, **sections})


def runs(**sections: Any) -> list[Run]:
    compare = {"arms": ["llama", "gpt2"], "seeds": [1, 2], **sections.pop("compare", {})}
    return plan(recipe(compare=compare, **sections), EXTENT)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No peak of an earlier test, and none that is measured where it does not matter."""
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cost, "matmul_peak", lambda *_: 1e11)
    return tmp_path / "cache"


def test_both_conventions_are_those_of_the_literature() -> None:
    sizes = {"width": 256, "layers": 6, "heads": 4, "inner": 688, "vocab": 8192, "context": 256}
    found = work(recipe({**sizes, "options": {"head": "tied"}}))
    # By hand: 6 FLOPs for each weight of a product, 12 L d T for the whole square of attention.
    products = 6 * (6 * (4 * 256 * 256 + 3 * 256 * 688) + 256 * 8192)
    assert found.full == products + 12 * 6 * 256 * 256
    assert found.causal == products + 12 * 6 * 256 * (256 + 1) // 2
    assert round(found.full / 1e6, 2) == 45.76


@pytest.mark.parametrize("name", variants())
def test_only_the_square_of_attention_grows_with_length(name: str) -> None:
    found = designed(recipe({"variant": name, "vocab": 300}))
    one, two, three = (
        account(found.spec, replace(found.shape, context=16 * times)).forward for times in (1, 2, 3)
    )
    assert three - two == two - one > 0


@given(st.integers(1, 64))
def test_a_causal_mask_saves_less_than_half_of_everything(block: int) -> None:
    found = work(recipe({"context": 64, "vocab": 300}, data={"block": block}))
    assert found.full / 2 < found.causal <= found.full
    assert (found.causal == found.full) == (block == 1)


def test_blocks_shorter_than_the_context_cost_less() -> None:
    long, short = recipe({"context": 64}), recipe({"context": 64}, data={"block": 16})
    assert work(short) == work(recipe({"context": 16}))
    assert work(short).full < work(long).full


@given(
    st.dictionaries(st.text(min_size=1), st.floats(1e-4, 1e2), min_size=1, max_size=5),
    st.integers(1, 10**6),
)
def test_times_differ_by_half_an_update_at_most(seconds: dict[str, float], updates: int) -> None:
    base = next(iter(seconds))
    found = updates_for_time(seconds, base, updates)
    assert found[base] == updates and set(found) == set(seconds)
    for arm, each in seconds.items():
        off = abs(found[arm] * each - updates * seconds[base])
        assert found[arm] >= 1
        assert off <= each / 2 * (1 + 1e-6) or found[arm] == 1


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20), st.integers(1, 8))
def test_a_schedule_lies_between_its_bounds(seconds: list[float], slots: int) -> None:
    found = _makespan(seconds, slots)
    assert found is not None
    least = max(max(seconds), sum(seconds) / slots)
    assert least * (1 - 1e-9) <= found <= (2 - 1 / slots) * least * (1 + 1e-9)
    assert math.isclose(_makespan(seconds, 1) or 0.0, sum(seconds))


def test_an_estimate_adds_up() -> None:
    found = estimate(runs(), RunSection(slots=2), measure=False, processes=False)
    assert [side.arm for side in found.sides] == ["llama", "gpt2"]
    assert found.runs == 4 and found.slots == 2
    for side in found.sides:
        assert side.flops == 20 * side.update_tokens * side.token_flops.full
        assert not side.measured and side.mfu == pytest.approx(calibration.ASSUMED)
    assert found.flops == sum(2 * side.flops for side in found.sides)
    one, two = (side.seconds or 0.0 for side in found.sides)
    assert found.seconds == pytest.approx(one + two)  # each slot takes one of each arm
    model = designed(runs()[0].recipe)
    assert sum(found.sides[0].parameters.values()) == account(model.spec, model.shape).parameters


def test_every_run_starts_a_process() -> None:
    with_them = estimate(runs(), RunSection(slots=2), measure=False)
    without = estimate(runs(), RunSection(slots=2), measure=False, processes=False)
    # Two slots: each starts two of the four.
    assert with_them.start == start.ASSUMED and without.start == 0
    assert (with_them.seconds or 0) - (without.seconds or 0) == pytest.approx(2 * start.ASSUMED)


def test_what_was_resized_is_said_at_any_width() -> None:
    found = estimate(runs(compare={"match": "parameters"}), measure=False)
    match = found.sides[1].match
    assert match is not None and found.sides[0].match is None
    said = f"matched on parameters: gpt2 inner {match.shape.inner}, {match.percent:+.2f} %"
    assert found.to_json()["arms"][1]["match"]["sizes"]["inner"] == match.shape.inner
    for width in (80, 140):
        shown = drawn(found, width)
        assert said in shown and "layers" in shown.splitlines()[0]
        assert "MORE MEMORY" not in shown
    assert "MORE MEMORY than the 1.00 kB" in drawn(replace(found, room=1000), 80).replace("\n", " ")


def test_emulated_rounding_takes_the_time_it_takes() -> None:
    sizes = {"width": 48, "context": 32}
    plain = plan(recipe(sizes), EXTENT)[0]
    rounded = plan(recipe(sizes, emulate={"format": "bf16"}), EXTENT)[0]
    flops = work(plain.recipe).full
    paces = [paced(run, flops, 1e11) for run in (plain, rounded)]
    times = [pace.update or 0.0 for pace in paces]
    # Evaluations are not rounded.
    assert 0.2 < (paces[1].forward or 0.0) / (paces[0].forward or 0.0) < 5
    assert (paces[0].forward or 0.0) < times[0]
    assert 1.3 < times[1] / times[0] < 30
    assert calibration._timeless(plain) != calibration._timeless(rounded)


def drawn(found: Estimate, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(found.table(width))
    shown = captured.get()
    assert max(map(len, shown.splitlines())) <= width
    return shown


def test_evaluations_take_time_too() -> None:
    without = estimate(runs(), measure=False)
    with_all = estimate(runs(), measure=False, validation_tokens=10_000)
    few = runs(evaluate={"blocks": 10, "every": 10})
    with_few = estimate(few, measure=False, validation_tokens=10_000)
    side = with_few.sides[0]
    reading = 3 * 160 / side.update_tokens / 3 * (side.update_seconds or 0.0)
    assert side.seconds == pytest.approx((without.sides[0].seconds or 0.0) + reading)
    assert (with_all.seconds or 0) > (with_few.seconds or 0) > (without.seconds or 0)


def test_a_measured_pace_is_that_of_the_real_loop() -> None:
    run = plan(recipe({"width": 64, "context": 64}), EXTENT)[0]
    pace = paced(run, work(run.recipe).full, 1e11)
    assert pace.measured and pace.update is not None
    assert _seconds_by_hand(run) / 3 < pace.update < 3 * _seconds_by_hand(run)


def _seconds_by_hand(run: Run) -> float:
    """Processor time of an update: forward, backward, step."""
    from layerlab.model.build import build
    from layerlab.training.machine import stopwatch
    from layerlab.training.optimizer import optimizer_of

    model = build("llama", **{**SIZES, "width": 64, "context": 64}, vocab=300).train()
    optimizer = optimizer_of(model, run.recipe.train)
    tokens = torch.randint(0, 300, (16, 64), generator=torch.Generator().manual_seed(1))
    clock, taken = stopwatch("cpu", 1), []
    for _ in range(4):
        start = clock()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(clock() - start)
    return min(taken)


def test_memory_is_measured_and_the_formula_comes_near() -> None:
    sizes = {"width": 64, "layers": 3, "context": 64, "vocab": 300}
    run = plan(recipe(sizes), EXTENT)[0]
    flops = work(run.recipe).full
    measured = paced(run, flops, 1e11).activations
    assumed = paced(run, flops, 1e11, measure=False).activations
    assert 0.5 < assumed / measured < 2
    small = plan(recipe(sizes, train={"updates": 20, "micro_batch": 4}), EXTENT)[0]
    assert paced(small, flops, 1e11).activations == pytest.approx(measured / 4, rel=0.05)


@pytest.mark.parametrize(
    ("processes", "micro_batch", "rows"), [(1, None, 16), (1, 100, 16), (2, 100, 8), (2, 4, 4)]
)
def test_a_pass_has_the_rows_that_the_loop_gives_it(
    processes: int, micro_batch: int | None, rows: int
) -> None:
    train = {"updates": 20, "batch": 16, "micro_batch": micro_batch}
    of_run = recipe(train=train, run={"processes": processes})
    assert calibration._rows(plan(of_run, EXTENT)[0]) == rows
    memory = [
        estimate(plan(one, EXTENT), measure=False).sides[0].memory
        for one in (of_run, recipe(train={"updates": 20, "batch": rows}))
    ]
    assert memory[0] == memory[1]


def test_what_is_too_long_is_measured_on_less() -> None:
    run = plan(recipe({"width": 64, "context": 256}), EXTENT)[0]
    flops = work(run.recipe).full
    whole = paced(run, flops, 1e11)
    # As if the machine were so slow that a pass had time for a third of a block.
    part = paced(run, flops, 80 * flops / (calibration.PASS * calibration.ASSUMED))
    assert part.update is not None and whole.update is not None
    assert 0.3 < part.update / whole.update < 8
    assert part.activations == pytest.approx(whole.activations, rel=0.2)


def test_measuring_leaves_random_state_and_threads_alone() -> None:
    run = plan(recipe({"variant": "llama"}), EXTENT)[0]
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    paced(run, work(run.recipe).full, 1e11)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_a_device_that_is_not_here_leaves_times_open() -> None:
    if here("cuda"):
        pytest.skip("there is a GPU here")
    found = estimate(runs(run={"device": "cuda"}), RunSection(device="cuda", slots=1))
    assert found.peak is None and found.seconds is None and found.flops > 0
    assert peak_of(recipe(run={"device": "cuda"})) is None
    assert "times are unknown: there is no such device here" in drawn(found, 90)


def test_the_table_and_the_json_say_the_same() -> None:
    found = estimate(runs(), RunSection(slots=2), measure=False)
    content = json.loads(json.dumps(found.to_json()))
    assert content["runs"] == 4 and content["arms"][1]["arm"] == "gpt2"
    assert content["arms"][0]["token_flops"]["causal"] < content["arms"][0]["token_flops"]["full"]
    for width in (80, 140):
        shown = drawn(found, width)
        assert "4 runs, 2 at once" in shown and "~ by formula: 40 % of the peak" in shown
        assert ("disk" in shown.splitlines()[0]) == (width > 100)


def test_slots_are_as_many_as_threads_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert slots_of(RunSection()) == 8
    assert slots_of(RunSection(threads=3)) == 2
    assert slots_of(RunSection(threads=16)) == 1
    assert slots_of(RunSection(processes=2)) == 4


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> list[Run]:
    """Each measurement takes the next of these; the runs that were measured."""
    left, asked = list(seconds), []

    def fake(run: Run, *_: Any) -> Pace:
        asked.append(run)
        return Pace(update=left.pop(0), activations=0, measured=True)

    monkeypatch.setattr(calibration, "paced", fake)
    return asked


def test_equal_time_gives_a_slow_arm_fewer_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    given = runs(evaluate={"every": 5})
    # Arms take turns; the fastest turn counts.
    asked = timed(monkeypatch, [0.1, 0.9, 0.3, 0.2, 0.5, 0.4])
    found = equal_time(given, arms(_comparison(), recipe()))
    assert [run.arm for run in asked] == 3 * ["llama", "gpt2"]
    updates = {run.arm: run.recipe.train.updates for run in found}
    assert updates == {"llama": 20, "gpt2": 10}
    assert {run.arm: run.recipe.evaluate.every for run in found} == {"llama": 5, "gpt2": 2}
    assert [run.seed for run in found] == [run.seed for run in given]
    # The same plan comes out again, though nothing is measured any more.
    timed(monkeypatch, [])
    assert equal_time(given, arms(_comparison(), recipe())) == found


def test_equal_time_keeps_what_an_arm_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = {"variant": "gpt2", "name": "gpt2", "set": {"train.updates": 7}}
    comparison = _comparison(["llama", fixed])
    given = runs(compare={"arms": ["llama", fixed], "differ": ["train.updates"]})
    timed(monkeypatch, 3 * [0.1])
    found = equal_time(given, arms(comparison, recipe()))
    assert {run.arm: run.recipe.train.updates for run in found} == {"llama": 20, "gpt2": 7}


def _comparison(sides: Sequence[Any] = ("llama", "gpt2")) -> Any:
    return recipe(compare={"arms": list(sides)}).compare


def test_equal_time_needs_the_device_and_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    given, named = runs(), arms(_comparison(), recipe())
    monkeypatch.setattr(cost, "peak_of", lambda _: None)
    with pytest.raises(UserError, match="are matched by time, and there is no 'cpu' here to mea"):
        equal_time(given, named)
    monkeypatch.undo()
    monkeypatch.setattr(cost, "matmul_peak", lambda *_: 1e11)
    monkeypatch.setenv("LAYERLAB_CACHE", "/dev/null/x")
    timed(monkeypatch, 6 * [0.1])
    with pytest.raises(UserError, match=r"what was measured cannot be kept: .* set LAYERLAB"):
        equal_time(given, named)


def test_mfu_of_what_the_peak_allows_is_one() -> None:
    assert utilisation(2e12, 2.0, 1e12) == 1.0
    assert isinstance(work(recipe()), Work)
