"""Batches: seeded by number, the same on any number of threads, found again and never mixed."""

import hashlib
import os
from functools import partial

import numpy as np
import pytest
import torch

from layerlab.console.progress import Progress
from layerlab.errors import DamageWarning
from layerlab.studies.engine.sampling import Sampler, cores
from tests.studies.small import context

SIZES = []
work = partial(context, draws=20)


def part(draw: Sampler, **case):
    SIZES.append(draw.count)
    return {"numbers": draw.normal(3, mean=case.get("mean", 0.0))}


def test_every_draw_is_there_once_and_follows_from_the_seed():
    SIZES.clear()
    (found,) = work().sample(part, batch=8)
    assert SIZES == [8, 8, 4] and found["numbers"].shape == (20, 3)
    assert len(np.unique(found["numbers"])) == 60
    (again,) = work(threads=3).sample(part, batch=8)
    assert np.array_equal(found["numbers"], again["numbers"])
    (other,) = work(seed=1).sample(part, batch=8)
    assert not np.array_equal(found["numbers"], other["numbers"])


def test_cases_meet_the_same_numbers():
    low, high = work().sample(part, [{"mean": 0.0}, {"mean": 5.0}], batch=8)
    assert np.allclose(high["numbers"] - low["numbers"], 5.0)


def test_batches_of_two_cases_and_of_two_parts_lie_beside_each_other(tmp_path):
    def further(draw: Sampler, **case):
        return {"numbers": draw.uniform(3)}

    cases = [{"mean": 0.0}, {"mean": 5.0}]
    stored = work(store=tmp_path)
    found = [stored.sample(one, cases, batch=8) for one in (part, further)]
    own = [work().sample(one, cases, batch=8) for one in (part, further)]
    assert stored.kept == 0
    for both in zip(found, own, strict=True):
        for one, other in zip(*both, strict=True):
            assert np.array_equal(one["numbers"], other["numbers"])


def test_what_was_finished_is_read_again_also_with_more_draws(tmp_path):
    work(draws=16, store=tmp_path).sample(part, batch=8)
    SIZES.clear()
    more = work(draws=32, store=tmp_path)
    (found,) = more.sample(part, batch=8)
    assert SIZES == [8, 8] and (more.kept, more.done) == (2, 4)
    assert np.array_equal(found["numbers"], work(draws=32).sample(part, batch=8)[0]["numbers"])


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"options": {"a": 1}}, {"study": "y"}, {"code": "2"}]
)
def test_what_belongs_to_other_settings_is_not_taken(tmp_path, changes):
    work(store=tmp_path).sample(part, batch=8)
    other = work(store=tmp_path, **changes)
    other.sample(part, batch=8)
    assert other.kept == 0


def resealed(file, **arrays):
    np.savez(file, **arrays)
    file.write_bytes(
        file.read_bytes() + hashlib.sha256(file.name.encode() + file.read_bytes()).digest()
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda first, other: first.write_bytes(first.read_bytes()[:100]),
        lambda first, other: first.write_bytes(b""),
        lambda first, other: first.write_bytes(other.read_bytes()),
        lambda first, other: np.savez(first, numbers=np.zeros((8, 3))),
        lambda first, other: np.savez(first, x=np.zeros(3)),
        lambda first, other: resealed(first, numbers=np.zeros((7, 3))),
        lambda first, other: resealed(first),
        lambda first, other: (first.unlink(), os.mkfifo(first)),
    ],
)
def test_a_batch_that_is_not_what_was_written_is_computed_anew(tmp_path, damage):
    (found,) = work(store=tmp_path, draws=24).sample(part, batch=8)
    first, other, _ = sorted(tmp_path.iterdir())
    damage(first, other)
    again = work(store=tmp_path, draws=24)
    with pytest.warns(DamageWarning, match="a batch in .* is not what was written") as said:
        (repeated,) = again.sample(part, batch=8)
    assert len(said) == 1
    assert again.kept == 2 and np.array_equal(found["numbers"], repeated["numbers"])


def test_an_error_in_one_batch_keeps_the_others(tmp_path):
    def fails(draw: Sampler):
        if draw.count == 4:
            raise ZeroDivisionError
        return part(draw)

    with pytest.raises(ZeroDivisionError):
        work(store=tmp_path).sample(fails, batch=8)
    assert len([*tmp_path.glob("*.npz")]) == 2 and not [*tmp_path.glob("*.partial")]


def test_threads_of_torch_are_left_as_they_were():
    before = torch.get_num_threads()
    work(threads=2).sample(part, batch=8)
    assert torch.get_num_threads() == before


def test_who_watches_is_told_of_every_batch():
    said = []

    class Watcher(Progress):
        def begin(self, name, steps=0):
            said.append(steps)

        def step(self, now="", steps=1):
            said.append(now)

    work(watcher=Watcher()).sample(part, [{}, {"mean": 1.0}], batch=10)
    assert said == [4, *(f"batch {n} of 4" for n in range(1, 5))]


def test_the_number_of_threads_can_be_given_from_outside(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cores() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert cores() >= 1
