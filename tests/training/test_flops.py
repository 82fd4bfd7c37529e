"""What runs cost: FLOPs against published counts, estimates against what was then measured."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from layerlab.errors import DamageWarning
from layerlab.experiments.estimate import equal_time as equal
from layerlab.experiments.estimate import step_time
from layerlab.experiments.estimate.equal_time import equal_time, updates_for_time
from layerlab.experiments.estimate.estimate import estimate
from layerlab.experiments.estimate.step_time import StepTime, measure_step_time
from layerlab.experiments.plan.own_files import load_files
from layerlab.experiments.plan.plan import plan
from layerlab.model.cost.cost import account
from layerlab.recipes.arms import arms
from layerlab.system.locks import lock_folder
from layerlab.training import flops as cost
from layerlab.training.flops import TokenFlops, flops_per_token, utilization
from layerlab.training.run_spec import RunSpec, count_costs, design_model
from layerlab.variants import registry
from layerlab.variants.registry import variants
from layerlab.variants.template import write_template
from tests.support.refused import refuses
from tests.training.support.planned import EXTENT, SIZES, recipe, runs, unmeasured  # noqa: F401  its fixture


def test_both_conventions_are_those_of_the_literature():
    sizes = {"width": 256, "layers": 6, "heads": 4, "inner": 688, "vocab": 8192, "context": 256}
    found = flops_per_token(recipe({**sizes, "options": {"head": "tied"}}))
    # By hand: 6 FLOPs for each weight of a product, 12 L d T for the whole square of attention.
    products = 6 * (6 * (4 * 256 * 256 + 3 * 256 * 688) + 256 * 8192)
    assert found.full == products + 12 * 6 * 256 * 256
    assert found.causal == products + 12 * 6 * 256 * (256 + 1) // 2
    assert round(found.full / 1e6, 2) == 45.76


@pytest.mark.parametrize("name", variants())
def test_only_the_square_of_attention_grows_with_length(name):
    found = design_model(recipe({"variant": name, "vocab": 300}))
    one, two, three = (
        account(found.spec, replace(found.shape, context=16 * times)).forward for times in (1, 2, 3)
    )
    assert three - two == two - one > 0


@given(st.integers(1, 64))
def test_a_causal_mask_saves_less_than_half_of_everything(block):
    found = flops_per_token(recipe({"context": 64, "vocab": 300}, data={"block_size": block}))
    assert found.full / 2 < found.causal <= found.full
    assert (found.causal == found.full) == (block == 1)


def test_blocks_shorter_than_the_context_cost_less():
    long, short = recipe({"context": 64}), recipe({"context": 64}, data={"block_size": 16})
    assert flops_per_token(short) == flops_per_token(recipe({"context": 16}))
    assert flops_per_token(short).full < flops_per_token(long).full


@given(
    st.dictionaries(st.text(min_size=1), st.floats(1e-4, 1e2), min_size=1, max_size=5),
    st.integers(1, 10**6),
)
def test_times_differ_by_half_an_update_at_most(seconds, updates):
    base = next(iter(seconds))
    fitted = dict.fromkeys(list(seconds)[1:], base)
    found = updates_for_time(seconds, fitted, {base: updates})
    assert found[base] == updates and set(found) == set(seconds)
    for arm, each in seconds.items():
        off = abs(found[arm] * each - updates * seconds[base])
        assert found[arm] >= 1
        assert off <= each / 2 * (1 + 1e-6) or found[arm] == 1


class _Operations(TorchDispatchMode):
    """A clock that every operation advances by one, whatever else the machine does."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, inputs: Any = (), options: Any = None
    ) -> Any:
        self.count += 1
        return operation(*inputs, **(options or {}))

    def now(self) -> float:
        return float(self.count)


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Operations]:
    with _Operations() as clock:
        monkeypatch.setattr(step_time, "stopwatch", lambda device, threads: clock.now)
        yield clock


@pytest.mark.full
def test_emulated_rounding_takes_the_time_it_takes(operations):
    sizes = {"width": 48, "context": 32}
    plain = plan(recipe(sizes), EXTENT)[0]
    rounded = plan(recipe(sizes, emulate={"format": "bf16"}), EXTENT)[0]
    flops = flops_per_token(plain.recipe).full
    paces = [measure_step_time(run, flops, 1e11) for run in (plain, rounded)]
    times = [pace.update or 0.0 for pace in paces]
    # Evaluations are not rounded.
    assert 0 < (paces[1].forward or 0.0) == (paces[0].forward or 0.0) < times[0] / 2
    assert 1.3 < times[1] / times[0] < 30
    assert step_time.timeless(plain) != step_time.timeless(rounded)


@pytest.mark.full
@pytest.mark.parametrize(
    ("control", "longer"),
    [
        ({"spectral_penalty": 0.1, "condition_penalty": 0.1}, 1.2),
        ({"qk_clip": 1e-6}, 1.05),
        ({"sigma_reparam": True}, 1.05),
    ],
)
def test_control_takes_the_time_it_takes(control, longer, operations):
    settings: dict[str, Any] = {
        "model": {"width": 48, "layers": 4, "heads": 4, "context": 32},
        "train": {"max_steps": 20, "batch_size": 2},
    }
    plain = plan(recipe(**settings), EXTENT)[0]
    held = plan(recipe(**settings, control=control), EXTENT)[0]
    flops = flops_per_token(plain.recipe).full
    times = [measure_step_time(run, flops, 1e11).update or 0.0 for run in (plain, held)]
    assert longer < times[1] / times[0] < 30
    assert step_time.timeless(plain) != step_time.timeless(held)
    # What was kept of runs without control is still theirs.
    assert len(step_time.timeless(plain)) == 6


@pytest.mark.full
def test_a_measured_pace_is_that_of_the_real_loop(operations):
    run = plan(recipe({"width": 64, "context": 64}), EXTENT)[0]
    pace = measure_step_time(run, flops_per_token(run.recipe).full, 1e11)
    assert pace.measured and pace.update is not None
    assert pace.update == pytest.approx(_operations_by_hand(run, operations), rel=0.15)


def _operations_by_hand(run: RunSpec, clock: _Operations) -> float:
    """Operations of an update: forward, backward, step."""
    from layerlab.model.build import build
    from layerlab.training.optimizer import build_optimizer

    model = build("llama", **{**SIZES, "width": 64, "context": 64}, vocab=300).train()
    optimizer = build_optimizer(model, run.recipe.train)
    tokens = torch.randint(0, 300, (16, 64), generator=torch.Generator().manual_seed(1))
    taken = []
    for _ in range(2):
        start = clock.now()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(clock.now() - start)
    return min(taken)


@pytest.mark.full
def test_memory_is_measured_and_the_formula_comes_near():
    sizes = {"width": 64, "layers": 3, "context": 64, "vocab": 300}
    run = plan(recipe(sizes), EXTENT)[0]
    flops = flops_per_token(run.recipe).full
    measured = measure_step_time(run, flops, 1e11).activations
    assumed = measure_step_time(run, flops, 1e11, measure=False).activations
    assert 0.5 < assumed / measured < 2
    small = plan(recipe(sizes, train={"max_steps": 20, "micro_batch_size": 4}), EXTENT)[0]
    assert measure_step_time(small, flops, 1e11).activations == pytest.approx(
        measured / 4, rel=0.05
    )


@pytest.mark.parametrize(
    ("processes", "micro_batch", "rows"), [(1, None, 16), (1, 100, 16), (2, 100, 8), (2, 4, 4)]
)
def test_a_pass_has_the_rows_that_the_loop_gives_it(processes, micro_batch, rows):
    train = {"max_steps": 20, "batch_size": 16, "micro_batch_size": micro_batch}
    of_run = recipe(train=train, run={"num_processes": processes})
    assert step_time._rows(of_run) == rows
    memory = [
        estimate(plan(one, EXTENT), measure=False).sides[0].memory
        for one in (of_run, recipe(train={"max_steps": 20, "batch_size": rows}))
    ]
    # All of them stand on this machine; what several exchange, they hold twice.
    exchanged = 4 * count_costs(plan(of_run, EXTENT)[0].recipe).parameters if processes > 1 else 0
    assert memory[0] == processes * (memory[1] + exchanged)


@pytest.mark.full
def test_arms_whose_updates_take_the_same_are_measured_once(monkeypatch):
    settings = [{"train.learning_rate": rate} for rate in (1e-3, 2e-3)] + [{"model.layers": 3}]
    named = [{"name": f"a{n}", "variant": "llama", "set": one} for n, one in enumerate(settings)]
    asked = timed(monkeypatch, [0.1, 0.2])
    monkeypatch.setattr(
        "layerlab.experiments.estimate.estimate.measure_step_time",
        lambda *given, **_: step_time.measure_step_time(*given),
    )
    found = estimate(runs(compare={"arms": named, "allowed_differences": ["*"]}))
    assert [run.arm for run in asked] == ["a0", "a2"]
    assert [side.update_seconds for side in found.sides] == [0.1, 0.1, 0.2]


@pytest.mark.full
def test_what_is_too_long_is_measured_on_less(operations):
    # As if the machine were so slow that a pass had time for a third of a block.
    run, short = (plan(recipe({"width": 64, "context": n}), EXTENT)[0] for n in (256, 80))
    flops, fewer = (flops_per_token(one.recipe).full for one in (run, short))
    whole = measure_step_time(run, flops, 1e11)
    part = measure_step_time(run, flops, 80.5 * flops / (step_time.PASS * step_time.ASSUMED))
    assert part.activations == pytest.approx(whole.activations, rel=0.2)
    # One row of 80 tokens takes as many operations as 16 of 256, or nearly so.
    assert part.update and whole.update and part.forward and whole.forward
    scale = 16 * 256 / 80 * flops / fewer
    assert part.forward == pytest.approx(whole.forward * scale, rel=0.05)
    # The optimizer's step does not grow with the tokens.
    assert part.forward < part.update < whole.update * scale


@pytest.mark.full
def test_each_of_two_processes_takes_half_of_the_rows(operations):
    alone, half = (
        plan(recipe({"width": 48, "context": 32}, run={"num_processes": count}), EXTENT)[0]
        for count in (1, 2)
    )
    flops = flops_per_token(alone.recipe).full
    times = [measure_step_time(run, flops, 1e11).update for run in (alone, half)]
    assert times[0] == times[1]  # as many operations, on half as many rows each


def test_measuring_leaves_random_state_and_threads_alone():
    run = plan(recipe({"variant": "llama"}), EXTENT)[0]
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    measure_step_time(run, flops_per_token(run.recipe).full, 1e11)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> list[RunSpec]:
    """Each measurement takes the next of these; the runs that were measured."""
    left, asked = list(seconds), []

    def fake(run: RunSpec, *_: Any) -> StepTime:
        asked.append(run)
        return StepTime(update=left.pop(0), activations=0, measured=True)

    monkeypatch.setattr(step_time, "measure_step_time", fake)
    return asked


def test_equal_time_gives_a_slow_arm_fewer_updates(monkeypatch):
    given = runs(evaluate={"eval_steps": 5})
    # Arms take turns; the fastest turn counts.
    asked = timed(monkeypatch, [0.1, 0.9, 0.3, 0.2, 0.5, 0.4])
    found = equal_time(given, arms(_comparison(), recipe()))
    assert [run.arm for run in asked] == 3 * ["llama", "gpt2"]
    updates = {run.arm: run.recipe.train.max_steps for run in found}
    assert updates == {"llama": 20, "gpt2": 10}
    assert {run.arm: run.recipe.evaluate.eval_steps for run in found} == {"llama": 5, "gpt2": 2}
    assert [run.seed for run in found] == [run.seed for run in given]
    # The same plan comes out again, though nothing is measured any more.
    timed(monkeypatch, [])
    assert equal_time(given, arms(_comparison(), recipe())) == found
    often = equal_time(runs(evaluate={"eval_steps": 1}), arms(_comparison(), recipe()))
    assert {run.recipe.evaluate.eval_steps for run in often} == {1}


@pytest.mark.full
def test_an_arm_whose_code_was_changed_is_timed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ADDED", {})
    idea = tmp_path / "my_idea.py"
    write_template(idea)
    compared = recipe(compare={"arms": ["llama", "my-idea"]})

    def updates(*seconds: float) -> int | None:
        timed(monkeypatch, seconds)
        loaded = load_files(compared, idea)
        assert loaded.compare is not None
        found = equal_time(plan(loaded, EXTENT), arms(loaded.compare, loaded))
        return next(run.recipe.train.max_steps for run in found if run.arm == "my-idea")

    assert updates(*3 * [0.1, 0.2]) == updates() == 10
    idea.write_text(idea.read_text() + "\n# Slower.\n")
    assert updates(*3 * [0.1, 0.4]) == 5


def measured(tmp_path, monkeypatch):
    """Runs of equal time, and the file that keeps what was measured for them."""
    given, named = runs(), arms(_comparison(), recipe())
    timed(monkeypatch, 3 * [0.1, 0.2])
    expected = equal_time(given, named)
    (file,) = (tmp_path / "cache").glob("pace*/*.json")
    return given, named, expected, file


@pytest.mark.parametrize(
    "kept", ["[0.1, 0.1]", "[NaN, 1]", "[0.1]", '{"seconds": [0.1, 0.1]}', "["]
)
def test_a_time_that_is_not_what_was_measured_is_measured_again(kept, tmp_path, monkeypatch):
    given, named, expected, file = measured(tmp_path, monkeypatch)
    file.write_text(kept)
    timed(monkeypatch, 3 * [0.1, 0.2])
    with pytest.warns(DamageWarning, match="does not count"):
        assert equal_time(given, named) == expected


def test_of_two_commands_at_once_one_measures_for_both(tmp_path, monkeypatch):
    given, named, expected, file = measured(tmp_path, monkeypatch)
    kept = file.read_bytes()
    file.unlink()
    timed(monkeypatch, [])
    with ThreadPoolExecutor() as pool:
        with lock_folder(file):
            second = pool.submit(equal_time, given, named)
            time.sleep(0.2)
            file.write_bytes(kept)
        assert second.result() == expected


def fit_to_time(*others: dict[str, Any]) -> dict[str, int | None]:
    """The updates of each arm beside a Llama of 20, where arms are to take equal time."""
    compared = recipe(compare={"arms": ["llama", *others]})
    assert compared.compare is not None
    found = equal_time(plan(compared, EXTENT), arms(compared.compare, compared))
    return {run.arm: run.recipe.train.max_steps for run in found}


@pytest.mark.parametrize("length", [{"max_steps": 7}, {"tokens": 7 * 256}])
def test_equal_time_keeps_what_an_arm_sets(length, monkeypatch):
    settings = {f"train.{name}": value for name, value in length.items()}
    timed(monkeypatch, [])
    assert fit_to_time({"variant": "gpt2", "set": settings}) == {"llama": 20, "gpt2": 7}


def test_equal_time_is_that_of_an_arms_own_baseline(monkeypatch):
    longer = {"variant": "gpt2", "set": {"train.max_steps": 200}}
    apart = {"variant": "gpt1", "against": "gpt1"}
    near, far = {"variant": "siaf-2", "against": "gpt2"}, {"variant": "siaf-3", "against": "gpt1"}
    timed(monkeypatch, 3 * [0.3, 0.5, 0.6, 0.1])  # of two baselines and what is held against them
    found = fit_to_time(near, longer, apart, far)
    assert found == {"llama": 20, "siaf-2": 333, "gpt2": 200, "gpt1": 20, "siaf-3": 120}


def test_equal_time_leaves_no_arm_less_than_its_warm_up(monkeypatch):
    late = {"variant": "gpt2", "set": {"train.warmup_steps": 10}}
    timed(monkeypatch, 3 * [0.2, 0.3])
    assert fit_to_time(late) == {"llama": 20, "gpt2": 13}
    late["set"] = {"train.warmup_steps": 11}
    timed(monkeypatch, 3 * [0.2, 0.4])
    refuses(r"train\.warmup_steps is 11, and the run has 10", fit_to_time, late)


def _comparison(sides: Sequence[Any] = ("llama", "gpt2")) -> Any:
    return recipe(compare={"arms": list(sides)}).compare


def test_equal_time_needs_the_device_and_a_cache(monkeypatch):
    given, named = runs(), arms(_comparison(), recipe())
    monkeypatch.setattr(equal, "peak_of", lambda _: None)
    refuses("are matched by time, and there is no 'cpu' here to mea", equal_time, given, named)
    monkeypatch.undo()
    monkeypatch.setattr(cost, "matmul_peak", lambda *_: 1e11)
    monkeypatch.setenv("LAYERLAB_CACHE", "/dev/null/x")
    timed(monkeypatch, 6 * [0.1])
    refuses(r"cannot lock /dev/null/x/.*; set LAYERLAB_CACHE to another", equal_time, given, named)


def test_mfu_of_what_the_peak_allows_is_one():
    assert utilization(2e12, 2.0, 1e12) == 1.0
    assert isinstance(flops_per_token(recipe()), TokenFlops)
