"""What residuals24 printed of its runs, and what follows from it: sizes, batches, conclusions.

The numbers are those of the document, as it prints them. A conclusion that its own numbers do not
bear stays here, refuted by the number that refutes it. Its shape is printed nowhere: what is told
of it is an inference from the arithmetic of `total_flos`.
"""

from dataclasses import dataclass

import pytest
from scipy import stats

import layerlab
from layerlab import UserError
from layerlab.experiments.plan.equal_terms import VariedSettings, check_equal_terms
from layerlab.model.cost.cost import account
from layerlab.model.design import design
from layerlab.recipes.training import load_recipe
from tests.training.support.drawn import manifest, recipe, runs

# transformers prints total_flos as int(value) >> 30, followed by "GF".
GF = 2**30
SAMPLES, EPOCHS, HELD_OUT = 68009, 5, 143
SHAPE = {"width": 512, "layers": 8, "heads": 8, "kv_heads": 4, "inner": 1024, "context": 2048}
TOKENS = 2048


@dataclass(frozen=True)
class Printed:
    """A training as it was printed: method, batch of trainings, and the metrics."""

    method: int
    trained: int
    flos: int
    runtime: str
    samples_per_second: float
    steps_per_second: float
    loss: float

    @property
    def seconds(self) -> float:
        hours, minutes, seconds = self.runtime.split(":")
        return 3600 * int(hours) + 60 * int(minutes) + float(seconds)

    @property
    def batch(self) -> float:
        """Sequences of a step."""
        return self.samples_per_second / self.steps_per_second


RUNS = (
    Printed(0, 1, 137242029, "2:25:12.59", 39.029, 2.44, 2.6217),
    Printed(1, 1, 137242029, "2:29:13.43", 37.979, 2.374, 2.7617),
    Printed(2, 1, 137242029, "2:29:25.17", 37.93, 2.371, 2.739),
    Printed(3, 1, 137248486, "2:45:41.57", 34.204, 4.276, 2.6273),
    Printed(4, 1, 137248486, "2:45:35.46", 34.225, 4.279, 2.6482),
    Printed(0, 2, 137242029, "2:25:54.63", 38.842, 2.428, 2.6234),
    Printed(5, 2, 137242029, "2:31:19.49", 37.452, 2.341, 2.7748),
    Printed(6, 2, 137248486, "2:47:51.35", 33.764, 4.221, 2.6901),
    Printed(7, 2, 137242029, "2:31:20.61", 37.447, 2.341, 2.7592),
    Printed(3, 2, 137248486, "2:47:16.45", 33.881, 4.236, 2.6307),
    Printed(4, 2, 137248486, "2:47:01.57", 33.931, 4.242, 2.6485),
)
HALF = (3, 4, 6)


def losses(method: int) -> list[float]:
    return [run.loss for run in RUNS if run.method == method]


def run_to_run() -> tuple[float, int]:
    """The standard deviation of a loss from its three repeats, and its degrees of freedom."""
    pairs = [losses(method) for method in (0, 3, 4)]
    return (sum((one - other) ** 2 / 2 for one, other in pairs) / len(pairs)) ** 0.5, len(pairs)


def significance(first: int, second: int) -> float:
    """Two-sided p of a difference of two methods, by the spread of the repeats."""
    spread, freedom = run_to_run()
    sizes = [len(losses(method)) for method in (first, second)]
    gap = sum(losses(first)) / sizes[0] - sum(losses(second)) / sizes[1]
    error = spread * sum(1 / size for size in sizes) ** 0.5
    return float(2 * stats.t.sf(abs(gap) / error, freedom))


def test_the_flops_it_prints_are_6_times_tokens_times_35_267_072_parameters():
    """total_flos = 6 x tokens x N: at 2,048 tokens the printed digits leave one N of 512's."""
    sequences = SAMPLES * EPOCHS
    low, high = (printed * GF / sequences / 6 for printed in (137242029, 137242030))
    inside = [
        n for n in range(int(low / TOKENS), int(high / TOKENS) + 2) if low <= n * TOKENS < high
    ]
    assert inside == [35_267_072]
    assert 35_267_072 % 512 == 0
    for other in (512, 1024):  # other lengths of a sequence ask for other sizes
        assert round(low / other) in (141_068_288, 70_534_144)


def test_the_inferred_shape_has_exactly_that_many_parameters():
    model = layerlab.build("llama", vocab=32000, head="untied", device="meta", **SHAPE)
    assert model.num_parameters(exclude_embeddings=True) == 35_267_072
    assert model.num_parameters() == 35_267_072 + 32000 * 512 == 51_651_072


def test_the_recipe_that_ships_has_that_shape():
    model = load_recipe("eight-residuals").model
    assert {name: getattr(model, name) for name in SHAPE} == SHAPE
    assert load_recipe("eight-residuals").inferred


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.method}-{run.trained}")
def test_methods_3_4_and_6_ran_at_half_the_batch_with_twice_the_updates(run):
    batch = 8 if run.method in HALF else 16
    assert run.batch == pytest.approx(batch, abs=0.02)
    updates = -(-SAMPLES // batch) * EPOCHS
    assert updates == (42510 if batch == 8 else 21255)
    # The rates have three decimals, or two.
    assert run.steps_per_second * run.seconds == pytest.approx(updates, rel=0.002)


def test_the_half_batches_counted_one_full_batch_more_as_a_restart_does():
    each = 137242029 / (SAMPLES * EPOCHS)
    more = (137248486 - 137242029) / each
    assert more == pytest.approx(16, abs=2 / each)  # whole units were printed on both sides


def test_refuted_total_flos_compares_the_methods():
    """It is one number for all methods at one batch, and it leaves out attention."""
    assert len({run.flos for run in RUNS if run.method not in HALF}) == 1
    assert len({run.flos for run in RUNS if run.method in HALF}) == 1
    sizes = {**SHAPE, "vocab": 32000}
    found = design("llama", sizes=sizes, options={"head": "untied"})
    counted = 3 * account(found.spec, found.shape).forward
    assert 1.3 < counted / (6 * 35_267_072) < 1.5


def test_its_repeats_tell_a_spread_of_two_thousandths():
    spread, freedom = run_to_run()
    assert freedom == 3
    assert spread == pytest.approx(0.0016, abs=5e-5)


def test_refuted_dividing_by_the_number_of_layers_hardly_matters():
    """2 is better than 1 by 0.0227 nats, 4 worse than 3 by 0.0194: ten spreads, opposite ways."""
    spread, _ = run_to_run()
    attention = losses(2)[0] - losses(1)[0]
    feedforward = [four - three for three, four in zip(losses(3), losses(4), strict=True)]
    assert attention == pytest.approx(-0.0227)
    assert sum(feedforward) / 2 == pytest.approx(0.0194, abs=1e-4)
    assert attention < 0 < min(feedforward)
    assert min(abs(attention), *feedforward) > 10 * spread
    # Each pair ran at one batch, so that its batch explains neither.
    assert {1, 2}.isdisjoint(HALF) and {3, 4} <= set(HALF)
    assert significance(2, 1) < 0.005 and significance(4, 3) < 0.005


def test_refuted_methods_3_and_4_are_as_good_as_the_plain_model():
    """4 loses 0.0258 nats at twice the updates; of 3 the numbers decide nothing."""
    plain = sum(losses(0)) / 2
    assert sum(losses(4)) / 2 - plain == pytest.approx(0.0258, abs=1e-4)
    assert significance(4, 0) < 0.005
    assert sum(losses(3)) / 2 - plain == pytest.approx(0.00645, abs=1e-4)
    assert 0.01 < significance(3, 0) < 0.05 and 3 in HALF


def test_the_ranking_is_that_of_its_numbers_and_all_of_its_leaders_had_other_updates():
    """0 > 3, 4 > 6 > 5, 7 holds; yet every change that leads had twice the updates."""
    mean = {method: sum(losses(method)) / len(losses(method)) for method in range(8)}
    assert mean[0] < mean[3] < mean[4] < mean[6] < min(mean[5], mean[7])
    assert max(mean[method] for method in HALF) < min(mean[method] for method in (1, 2, 5, 7))
    assert sorted(mean, key=mean.__getitem__)[:4] == [0, 3, 4, 6]


def test_refuted_its_runs_can_be_compared_at_all():
    """Our comparison refuses runs of which some have half the batch and twice the updates."""
    arms = [
        {"name": f"m{m}", "variant": f"history-{m}" if m else "llama"}
        | {"set": {"train.batch_size": 2 if m in HALF else 4}}
        for m in range(8)
    ]
    train = {"max_steps": None, "tokens": 16 * 4 * 30}
    found = [manifest(run) for run in runs(recipe(*arms, train=train))]
    with pytest.raises(UserError, match=r"train.batch_size is 4 in m0-s1.*and 2 in m3-s1") as told:
        check_equal_terms(found, VariedSettings())
    assert str(told.value).endswith('compare.allowed_differences = ["train.batch_size"]')
    alike = [one for one in found if one["arm"] not in {f"m{m}" for m in HALF}]
    assert check_equal_terms(alike, VariedSettings()) == []
