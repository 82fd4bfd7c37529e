"""Arm + seed + residual against statsmodels, against paired tests, and with holes in the table."""

import time
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from layerlab.experiments.statistics.additive_model import Additive, presence
from layerlab.experiments.statistics.differences import Level, paired_difference
from layerlab.experiments.statistics.joined_variance import satterthwaite
from layerlab.experiments.statistics.moderated_variance import LENT, MOST, Prior
from layerlab.experiments.statistics.multiple_comparisons import holm

Values = dict[str, dict[int, float]]
LEVEL = Level()


def drawn(arms: int, seeds: int, start: int = 0) -> Values:
    rng = np.random.default_rng(start)
    shared = rng.normal(3, 0.5, seeds)
    return {
        f"a{arm}": {seed: float(shared[seed] + rng.normal(0, 0.05)) for seed in range(seeds)}
        for arm in range(arms)
    }


def long(values: Values) -> pd.DataFrame:
    rows = [(arm, str(seed), one) for arm, found in values.items() for seed, one in found.items()]
    return pd.DataFrame(rows, columns=["arm", "seed", "loss"])


def without(values: Values, *cells: tuple[str, int]) -> Values:
    return {
        arm: {seed: one for seed, one in found.items() if (arm, seed) not in cells}
        for arm, found in values.items()
    }


def pooled(model: Additive) -> float:
    """The residual mean square."""
    return float(model.residuals @ model.residuals) / model.freedom


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variances are held to be equal: nothing is left of an arm's own."""
    monkeypatch.setattr(Additive, "common", property(lambda self: Prior(pooled(self), 1e12)))


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize("holes", [(), (("a1", 0),), (("a0", 1), ("a2", 3), ("a3", 0))])
def test_with_equal_variances_it_is_the_two_way_analysis_of_statsmodels(holes):
    values = without(drawn(4, 5), *holes)
    model = Additive(values)
    fit = smf.ols("loss ~ arm + seed", long(values)).fit()
    table = sm.stats.anova_lm(fit, typ=2)
    assert model.freedom == pytest.approx(table.df["Residual"])
    assert pooled(model) == pytest.approx(table.sum_sq["Residual"] / table.df["Residual"])
    for arm in ("a1", "a2", "a3"):
        found, name = model.difference(arm, "a0", LEVEL), f"arm[T.{arm}]"
        assert found.kind == "moderated"
        assert found.mean == pytest.approx(fit.params[name])
        assert found.error == pytest.approx(fit.bse[name])
        assert found.p == pytest.approx(fit.pvalues[name], rel=1e-5)
        assert found.interval == pytest.approx(tuple(fit.conf_int().loc[name]), rel=1e-5)


@pytest.mark.usefixtures("alike")
def test_seeds_drawn_at_random_give_the_same_differences():
    """In a whole table a mixed model and this one agree: what a seed has to itself leaves."""
    values = drawn(4, 6)
    fit = smf.mixedlm("loss ~ arm", long(values), groups="seed").fit(reml=True)
    for arm in ("a1", "a2", "a3"):
        found = Additive(values).difference(arm, "a0", LEVEL)
        assert found.mean == pytest.approx(fit.params[f"arm[T.{arm}]"], abs=1e-8)
        assert found.error == pytest.approx(fit.bse[f"arm[T.{arm}]"], rel=1e-2)


def test_a_margin_is_tested_as_statsmodels_tests_equivalence():
    values = drawn(2, 6)
    ours, theirs = (np.array(list(found.values())) for found in values.values())
    found = paired_difference(ours.tolist(), theirs.tolist())
    margin = 0.08
    p, (_, below, _), (_, above, _) = ttost_paired(ours, theirs, -margin, margin)
    # Theirs are one-sided; a test with a direction is at the two-sided level here.
    assert found.p_at(-margin) == pytest.approx(2 * below)
    assert found.p_at(margin) == pytest.approx(2 * above)
    assert max(found.p_at(-margin), found.p_at(margin)) == pytest.approx(2 * p)
    assert found.interval == pytest.approx(DescrStatsW(ours - theirs).tconfint_mean())


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 8), st.integers(2, 6), st.integers(0, 1000))
def test_degrees_and_squares_of_arms_add_up_to_those_of_all(arms, seeds, start):
    model = Additive(drawn(arms, seeds, start))
    assert model.usable and model.freedom == pytest.approx((arms - 1) * (seeds - 1))
    assert model.freedoms.sum() == pytest.approx(model.freedom)
    assert model.common.freedom <= min(MOST, arms - 1)
    assert model.freedoms @ model.variances == pytest.approx(pooled(model) * model.freedom)


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 6), st.integers(3, 6), st.integers(0, 1000), st.floats(-5, 5))
def test_the_order_of_arms_and_a_shift_of_a_seed_change_nothing(arms, seeds, start, shift):
    values = drawn(arms, seeds, start)
    moved = {
        arm: {seed: one + shift * (seed == 0) for seed, one in found.items()}
        for arm, found in reversed(values.items())
    }
    one, other = (Additive(each).difference("a1", "a0", LEVEL) for each in (values, moved))
    assert one.mean == pytest.approx(other.mean, abs=1e-9)
    assert one.error == pytest.approx(other.error, rel=1e-6)
    turned = Additive(values).difference("a0", "a1", LEVEL)
    assert turned.p == pytest.approx(one.p) and turned.mean == pytest.approx(-one.mean)


def test_a_noisy_arm_keeps_its_own_and_a_baseline_is_lent_less():
    values = drawn(6, 4)
    rng = np.random.default_rng(9)
    values["a5"] = {seed: one + float(rng.normal(0, 1)) for seed, one in values["a5"].items()}
    model = Additive(values, shared={"a0": 1.0})
    noisy, calm = (model.difference(arm, "a0", LEVEL).error for arm in ("a5", "a1"))
    assert noisy > 1.5 * calm
    assert model.unequal() < 0.01 and Additive(drawn(6, 4)).unequal() > 0.05
    assert model.common.freedom <= MOST
    own = model.freedoms[0]
    assert dict(zip(model.arms, model.moderated, strict=True))["a0"][1] <= own * (1 + LENT) + 1e-9


def test_an_arm_is_lent_the_less_the_more_tests_it_stands_in():
    hubs = [("a1", "a0"), ("a2", "a0"), ("a3", "a0"), ("a2", "a1"), ("a1", "a2"), ("a3", "a1")]
    found = presence(hubs)
    assert found == {"a0": 0.5, "a1": 0.5, "a2": 0.25, "a3": 0.25}
    model = Additive(drawn(4, 8), found)
    degrees = [freedom for _, freedom in model.moderated]
    own = model.freedoms[0]
    assert degrees[0] == pytest.approx(own + min(4 * LENT * own, model.common.freedom))
    assert degrees[2] == pytest.approx(own + min(16 * LENT * own, model.common.freedom))
    assert presence([("a", "b"), ("b", "a")]) == {"a": 0.0, "b": 0.0} and presence([]) == {}


def test_the_power_of_all_arms_is_more_than_that_of_a_pair():
    found = 0, 0
    for start in range(100):
        values = drawn(8, 3, start)
        values["a7"] = {seed: one + 0.2 for seed, one in values["a7"].items()}
        model = Additive(values, {"a0": 1.0})
        each = [model.difference(f"a{arm}", "a0", LEVEL).p for arm in range(1, 8)]
        base = list(values["a0"].values())
        alone = [paired_difference(list(values[f"a{arm}"].values()), base).p for arm in range(1, 8)]
        found = found[0] + (holm(each)[-1] < 0.05), found[1] + (holm(alone)[-1] < 0.05)
    assert found[0] >= 3 * max(1, found[1])


def test_equal_losses_identical_arms_and_tables_of_nothing():
    values = drawn(3, 3)
    twice = {**values, "again": dict(values["a0"])}
    model = Additive(twice, {"a0": 1.0})
    assert model.difference("again", "a0", LEVEL).identical
    # Scores are equal by chance, too: then the others tell how much of it.
    scores = Additive(twice, {"a0": 1.0}, exact=False).difference("again", "a0", LEVEL)
    assert scores.p_at(0.01) > 0 and scores.error > 0 and scores.mean == pytest.approx(0)
    # An arm that is another arm tells of noise no more than that one does.
    assert model.freedom == Additive(values).freedom
    assert model.difference("a1", "a0", LEVEL) == Additive(values, {"a0": 1.0}).difference(
        "a1", "a0", LEVEL
    )
    shifted = {f"a{arm}": {seed: seed + arm / 8 for seed in range(3)} for arm in range(4)}
    assert not Additive(shifted).usable and Additive(shifted).difference("a1", "a0", LEVEL).flat
    assert not Additive({}).usable and not Additive({"a0": {}, "a1": {1: 3.0}}).usable
    assert Additive({}).difference("a0", "a1", LEVEL).n == 0
    one = Additive({arm: {1: found[1]} for arm, found in values.items()})
    assert not one.usable and one.difference("a1", "a0", LEVEL).n == 1


@pytest.mark.parametrize("wide", [[(3, 2), (2, 3)], [(2, 3, 2), (2, 2, 3), (3, 2, 2)]])
def test_scores_of_which_most_have_no_spread_lend_none(wide):
    rows = [*((level,) * len(wide[0]) for level in (2, 1, 0, 1)), *wide]
    scores = {f"a{arm}": dict(enumerate(map(float, row))) for arm, row in enumerate(rows)}
    model = Additive(scores, {"a0": 1.0}, exact=False)
    assert model.difference("a1", "a0", LEVEL).flat
    own = paired_difference(*([*scores[arm].values()] for arm in ("a4", "a0")))
    assert model.difference("a4", "a0", LEVEL).p == pytest.approx(own.p)


def test_what_a_table_with_holes_cannot_tell_is_told_by_the_pair_alone():
    values = drawn(4, 4)
    # Two halves without a seed in common.
    cut = {
        "a0": {seed: values["a0"][seed] for seed in (0, 1)},
        "a1": {seed: values["a1"][seed] for seed in (0, 1)},
        "a2": {seed: values["a2"][seed] for seed in (2, 3)},
        "a3": {seed: values["a3"][seed] for seed in (2, 3)},
    }
    model = Additive(cut)
    assert model.difference("a1", "a0", LEVEL).kind == "moderated"
    assert model.difference("a2", "a0", LEVEL).n == 0


@pytest.mark.full
@pytest.mark.parametrize(("arms", "seeds"), [(2, 15_000), (1500, 3)])
@pytest.mark.parametrize("holes", [(), (("a1", 0),)])
def test_a_large_table_takes_no_square_of_its_readings(arms, seeds, holes):
    values = without(drawn(arms, seeds), *holes)
    tracemalloc.start()
    model = Additive(values)
    found = model.contrast({"a1": 1, "a0": -1}, LEVEL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.n == seeds - len(holes) and peak < 300e6
    assert model.freedom == pytest.approx((arms - 1) * (seeds - 1) - len(holes), rel=1e-9)


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize("holes", [(), (("a1", 0), ("a4", 2))])
def test_an_interaction_is_the_contrast_of_statsmodels(holes):
    values = without(drawn(5, 5), *holes)
    signs = {"a0": 1, "a1": -1, "a2": -1, "a3": 1}
    fit = smf.ols("loss ~ arm + seed", long(values)).fit()
    oracle = fit.t_test("-arm[T.a1] - arm[T.a2] + arm[T.a3] = 0")
    found = Additive(values).contrast(signs, LEVEL)
    assert found.kind == "moderated" and found.n == (4 if holes else 5)
    assert found.mean == pytest.approx(float(oracle.effect[0]))
    assert found.error == pytest.approx(float(oracle.sd[0, 0]))
    assert found.p == pytest.approx(float(oracle.pvalue))


@pytest.mark.full
@pytest.mark.parametrize("spreads", [(1, 1, 1, 1), (3, 1, 1, 1), (1, 3, 1, 1), (1, 1, 3, 3)])
@pytest.mark.parametrize("seeds", [3, 5])
def test_an_interaction_among_the_tests_leaves_false_words_as_rare_as_promised(spreads, seeds):
    """Four arms that are all as good, however noisy: a word in one comparison of twenty at most."""
    rng, tries = np.random.default_rng(0), 2000
    names = ("a", "b", "c", "d")
    tests = [("b", "a"), ("c", "a"), ("d", "c"), names]
    shared = presence(tests)
    false = 0
    for _ in range(tries):
        table = rng.normal(0, 1, seeds) + rng.normal(size=(4, seeds)) * np.array(spreads)[:, None]
        rows = zip(names, table.tolist(), strict=True)
        model = Additive({name: dict(enumerate(row)) for name, row in rows}, shared)
        signs = [dict(zip(test, (1, -1, -1, 1), strict=False)) for test in tests]
        found = [model.contrast(one, LEVEL).p for one in signs]
        false += min(holm([1.0 if p is None else p for p in found])) < 0.05
    # Three standard errors of a share of 0.05 above it.
    assert false / tries < 0.05 + 3 * (0.05 * 0.95 / tries) ** 0.5


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arms", "seeds", "kept"), [(9, 3, 0.8), (4, 8, 0.8), (6, 6, 0.6), (12, 2, 0.9), (5, 4, 1.0)]
)
def test_a_difference_is_that_of_the_weights_of_all_cells(arms, seeds, kept):
    """Whole least squares, with no pattern of cells reckoned with once, of drawn tables."""
    counted = 0
    for start in range(12):
        rng = np.random.default_rng(start)
        values = {
            arm: {seed: one for seed, one in found.items() if rng.random() < kept}
            for arm, found in drawn(arms, seeds, start).items()
        }
        values = {arm: found for arm, found in values.items() if found}
        table = long(values)
        cells = pd.get_dummies(table[["arm", "seed"]]).to_numpy(float)
        solved, names = np.linalg.pinv(cells), sorted(values)
        model = Additive(values, presence([(name, names[0]) for name in names[1:]]))
        for arm in names[1:]:
            found = model.difference(arm, names[0], LEVEL)
            if found.kind != "moderated":
                continue
            counted += 1
            weights = solved[names.index(arm)] - solved[0]
            parts = [
                (float((weights[table["arm"] == name] ** 2).sum()) * variance, freedom)
                for name, (variance, freedom) in zip(model.arms, model.moderated, strict=True)
            ]
            error, freedom = satterthwaite([one for one in parts if one[0] > 1e-18])
            assert found.mean == pytest.approx(weights @ table["loss"], abs=1e-12)
            assert found.error == pytest.approx(error, rel=1e-9)
            assert found.freedom == pytest.approx(min(freedom, model.freedom), rel=1e-6)
    assert counted > 12


def test_an_arm_without_a_degree_of_its_own_says_nothing_of_unequal_variances():
    """Of its residuals rounding errors are left, which differ from all others in size."""
    for start in range(30):
        values = drawn(4, 5, start)
        values["a3"] = {0: values["a3"][0], 9: values["a3"][1]}
        model, others = Additive(values), Additive({arm: values[arm] for arm in ("a0", "a1", "a2")})
        assert model.freedoms[3] == pytest.approx(0, abs=1e-9)
        assert model.unequal() == pytest.approx(others.unequal(), rel=1e-6)


@pytest.mark.full
def test_a_difference_takes_no_longer_where_there_are_more_arms():
    """16 times as many arms of three seeds, some with holes: about as long, and not 16 times."""
    taken = []
    for arms in (500, 8000):
        values = without(drawn(arms, 3), ("a5", 1), ("a7", 0), ("a9", 2))
        model = Additive(values)
        model.difference("a1", "a0", LEVEL)
        turns = []
        for _ in range(5):
            began = time.process_time()
            for arm in range(1, 101):
                model.difference(f"a{arm}", "a0", LEVEL)
            turns.append(time.process_time() - began)
        taken.append(min(turns))
    assert taken[1] < 4 * taken[0]
