"""Twins for studies: what is equal between arms, and what their differences are said to be."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from layerlab.errors import DamageWarning
from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.engine.sampling import Sampler
from layerlab.studies.engine.statistics import Interval, over_seeds, ratio_over_seeds
from layerlab.studies.support import small_models
from layerlab.studies.support.stored_readings import FOLDER
from tests.studies.small import context

SIZES = {"layers": 1, "width": 16, "updates": 2}
ARMS = (small_models.PLAIN, "pangu-pi")


@pytest.mark.full
def test_a_seed_gives_the_same_twin_and_another_seed_another():
    one, again, other = (small_models.train_one("pangu-pi", seed, **SIZES) for seed in (1, 1, 2))
    assert one.nats == again.nats != other.nats
    assert torch.equal(one.held, again.held) and torch.equal(one.held, other.held)
    assert one.held.shape == (small_models.HELD, small_models.CONTEXT)
    pairs = zip(one.subject.model.parameters(), again.subject.model.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


def test_arms_start_alike_and_have_as_many_parameters():
    # PanGu-pi begins as the Llama block, so before training both say the same.
    sizes = {**SIZES, "width": 64}
    plain, both = (
        small_models.train_one(arm, 3, **sizes) for arm in (small_models.PLAIN, "pangu-pi")
    )
    counts = [sum(p.numel() for p in one.subject.model.parameters()) for one in (plain, both)]
    assert counts[0] == pytest.approx(counts[1], rel=0.01)
    assert plain.nats == pytest.approx(both.nats, rel=0.01)


work = partial(context, options=SIZES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Twins of two seeds and both arms, in a folder of their own, and what was said of them."""
    first = work(tmp_path_factory.mktemp("twins"))
    return first, *small_models.gather_arms(first, ARMS)


@pytest.mark.full
def test_every_seed_of_every_arm_is_read_and_kept(trained):
    first, parts, remarks = trained
    assert [*parts] == [*ARMS] and remarks == (small_models.ABOUT, small_models.PAIRED)
    for part in parts.values():
        assert part["nats"].shape == (2,) and part["layers"].shape == (2, 2, 2)
        assert ((part["layers"] > 0) & (part["layers"] <= 1)).all()
        assert len(set(part["nats"].tolist())) == 2
    assert len([*(first.runs / FOLDER).iterdir()]) == 4
    assert len([*small_models.rows(parts)]) == 2 * 2 * 2


@pytest.mark.full
def test_what_lies_there_is_not_trained_again(trained, monkeypatch):
    first, before, _ = trained
    known = small_models.readings(first.runs)
    monkeypatch.setattr(small_models, "train_one", None)
    for fast in (False, True):
        again = work(first.runs, fast=fast)
        after, remarks = small_models.gather_arms(again, ARMS)
        assert all((after[arm]["layers"] == before[arm]["layers"]).all() for arm in ARMS)
        assert (first.kept, again.kept, again.done) == (0, 4, 4)
        assert remarks[2:] == ("Of 4 models 4 had been trained before, and are read.",)
    assert small_models.readings(first.runs) == known


def count_up(monkeypatch):
    """Train nothing: the first model has a loss of 1, the next of 2, and so on."""
    nats = iter(range(1, 99))

    def train_one(arm, seed, **sizes):
        return small_models.Twin(None, float(next(nats)), torch.zeros(1, 1))

    monkeypatch.setattr(small_models, "train_one", train_one)
    monkeypatch.setattr(
        small_models,
        "DEPTH",
        replace(small_models.DEPTH, read=lambda one: {"nats": one.nats, "layers": [[0.5, 0.5]]}),
    )


def test_readings_of_other_code_are_made_again_and_told_where_nothing_is_trained(
    tmp_path, monkeypatch
):
    count_up(monkeypatch)
    before, _ = small_models.gather_arms(work(tmp_path), ARMS)
    monkeypatch.setattr(small_models, "fingerprint", lambda module: "of a variant that was changed")
    judged, notes = small_models.gather_arms(work(tmp_path, fast=True), ARMS)
    assert (judged["pangu-pi"]["nats"] == before["pangu-pi"]["nats"]).all()
    assert notes[-1].startswith("Of these models 4 were trained and read by other code")
    again = work(tmp_path)
    after, notes = small_models.gather_arms(again, ARMS)
    assert again.kept == 0 and after["llama"]["nats"].min() > before["pangu-pi"]["nats"].max()
    assert notes == (small_models.ABOUT, small_models.PAIRED)
    once_more = work(tmp_path)
    small_models.gather_arms(once_more, ARMS)
    assert once_more.kept == 4


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda file, other: file.write_text('{"nats": 7.0}'), "is not what was written"),
        (lambda file, other: file.write_bytes(b"\xff"), "utf-8"),
        (lambda file, other: file.write_text("["), "Expecting value"),
        (lambda file, other: file.write_bytes(other.read_bytes()), "is not what was written"),
        (lambda file, other: write_kept(file, {"nats": 7.0}), "KeyError: 'layers'"),
        (lambda file, other: write_kept(file, {**read_kept(other), "nats": [7]}), "nats has the"),
        (lambda file, other: write_kept(file, {**read_kept(other), "hours": "x"}), "'x'"),
    ],
)
def test_readings_that_are_not_what_was_written_are_made_again(tmp_path, monkeypatch, damage, why):
    count_up(monkeypatch)
    before, _ = small_models.gather_arms(work(tmp_path), ARMS)
    file, other = sorted((tmp_path / FOLDER).glob("*-pangu-pi-*"))
    damage(file, other)
    again = work(tmp_path)
    with pytest.warns(DamageWarning, match=f"{file.name} does not count: .*{why}") as said:
        after, _ = small_models.gather_arms(again, ARMS)
    assert len(said) == 1 and again.kept == 3
    assert (before["llama"]["nats"] == after["llama"]["nats"]).all()
    assert sorted(after["pangu-pi"]["nats"].tolist()) in ([3.0, 5.0], [4.0, 5.0])


@pytest.mark.full
def test_readings_of_another_documentation_are_judged_and_not_gone_on_with(tmp_path):
    small_models.gather_arms(work(tmp_path), ARMS)
    for file in (tmp_path / FOLDER).iterdir():
        write_kept(file, {**read_kept(file), "nats": 7.0, "text": "other"})
    judged, _ = small_models.gather_arms(work(tmp_path, fast=True), ARMS)
    assert (judged["pangu-pi"]["nats"] == 7).all()
    trained, _ = small_models.gather_arms(work(tmp_path), ARMS)
    assert (trained["pangu-pi"]["nats"] != 7).all()


@pytest.mark.full
def test_the_fast_mode_leaves_nothing_where_nothing_lies(tmp_path, monkeypatch):
    monkeypatch.setattr(small_models, "FAST", {**SIZES, "updates": 1})
    parts, remarks = small_models.gather_arms(work(tmp_path, fast=True, draws=1), ARMS)
    assert parts["pangu-pi"]["nats"].shape == (1,) and [*tmp_path.iterdir()] == []
    assert remarks[2:] == (
        "No runs were at hand: layers 1, width 16, updates 1 stand in for them.",
    )


def test_generators_are_those_of_a_batch(tmp_path):
    def part(draw):
        return {"drawn": draw.normal(3)}

    one = work(tmp_path, draws=4, seed=5)
    (found,) = one.sample(part, batch=2)
    drawn = [
        Sampler(count=2, generator=small_models.generator_of(one, n)).normal(3) for n in (0, 1)
    ]
    assert np.array_equal(found["drawn"], np.concatenate(drawn))


def test_another_recipe_another_seed_and_another_arm_are_other_files(tmp_path):
    files = {
        small_models.locate_readings(tmp_path, "depth", arm, seed, **{**SIZES, "updates": updates})
        for arm in ARMS
        for seed in small_models.seeds_of(work(tmp_path))
        for updates in (1, 2)
    }
    assert len(files) == 8
    assert small_models.seeds_of(work(tmp_path, seed=1)) != small_models.seeds_of(work(tmp_path))


def test_intervals_are_students():
    ours, theirs = np.array([1.0, 2.1, 3.0]), np.array([1.1, 2.2, 3.2])
    found = over_seeds(ours, theirs)
    # t of 2 degrees at 97.5 % is 4.3027; the differences spread by sqrt(1/300).
    half = 4.302653 * (1 / 300) ** 0.5 / 3**0.5
    assert found.value == pytest.approx(-0.4 / 3)
    assert (found.low, found.high) == pytest.approx((-0.4 / 3 - half, -0.4 / 3 + half))
    wider = over_seeds(ours, theirs, comparisons=4)
    assert wider.low < found.low and wider.high > found.high


def test_equal_seeds_leave_no_spread():
    values = np.array([1.0, 2.0, 4.0])
    assert over_seeds(values, values) == Interval(0.0, 0.0, 0.0)
    found = ratio_over_seeds(3 * values, values)
    assert (found.value, found.low, found.high) == pytest.approx((3, 3, 3))


def test_a_quotient_and_its_inverse_mirror_each_other():
    ours, theirs = np.array([1.0, 2.0, 4.0]), np.array([2.0, 3.0, 5.0])
    found, back = ratio_over_seeds(ours, theirs), ratio_over_seeds(theirs, ours)
    assert found.value * back.value == pytest.approx(1)
    assert found.low * back.high == pytest.approx(1)
