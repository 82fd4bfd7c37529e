"""Several runs or texts in one file, and one run that logged steps again."""

import pytest

from layerlab import UserError
from tests.logs.written import ROWS, check, put, read, write_csv
from tests.support.refused import refuses


def test_steps_that_are_logged_again_count_once(tmp_path):
    rows = [ROWS[0], {"step": 20, "loss": 9.0}, {"step": 30, "loss": 9.0}, *ROWS[1:]]
    (found,) = read(write_csv(tmp_path / "resumed-s1.csv", rows))
    check(found, "resumed", "1")
    assert found.again == 2


@pytest.mark.parametrize(
    ("steps", "counts"),
    [
        # It had come to 25 and 30 when it was taken up again from a checkpoint behind 10.
        ([10, 20, 25, 30, 20, 30, 40], [0, 4, 5, 6]),
        ([10, 20, 25, 30, 15, 30, 40], [0, 4, 5, 6]),
        ([10, 20, 25, 30, 20, 28, 24, 28, 35], [0, 4, 6, 7, 8]),
        # How it got beyond where it is by now, nothing else tells.
        ([10, 20, 25, 30, 20, 26], [0, 4, 5, 3]),
        # Rows in no order are of one way.
        ([40, 30, 30, 20, 10], [4, 3, 2, 0]),
        ([10, 100, 20, 200], [0, 2, 1, 3]),
    ],
)
def test_what_a_resumed_run_had_passed_before_does_not_count(tmp_path, steps, counts):
    rows = [{"step": step, "loss": 5.0 + place / 10} for place, step in enumerate(steps)]
    (found,) = read(write_csv(tmp_path / "resumed-s1.csv", rows))
    assert found.losses.tolist() == [rows[place]["loss"] for place in counts]
    assert found.again == len(steps) - len(counts)


@pytest.mark.parametrize(
    ("losses", "again"),
    [
        ("10,9\n10,8\n20,7\n30,6\n", 1),  # it failed behind its first reading
        ("10,9\n10,8\n20,7\n30,9\n20,6\n30,5\n", 3),
        ("10,9\n10,9\n", 1),
        ("10,nan\n10,nan\n", 1),
        ("10,9\n20,7\n30,9\n30,9\n", 1),
    ],
)
def test_a_reading_that_is_written_twice_is_of_one_run(tmp_path, losses, again):
    (found,) = read(put(tmp_path / "a-s1.csv", f"step,loss\n{losses}"))
    assert found.again == again


TWICE = {
    "two trainings": "step,loss\n1,9\n2,8\n1,7\n2,6\n",
    "one that got less far": "step,loss\n1,9\n2,8\n3,8\n1,7\n",
    "two scores of a step": "step,loss\n1,9\n1,7\n2,8\n2,6\n",
    "the same beginning": "step,loss\n1,9\n1,9\n2,8\n2,6\n",
    "one step": "step,loss\n1,9\n1,7\n",
}


@pytest.mark.parametrize("text", TWICE.values(), ids=TWICE)
def test_two_runs_in_one_file_are_refused_whatever_its_columns(tmp_path, text):
    with pytest.raises(UserError, match="several readings of 'a' with seed 1 at its first step, 1"):
        read(put(tmp_path / "a-s1.csv", text))
    lines = [f"step {one.replace(',', ': val loss ')}" for one in text.splitlines()[1:]]
    with pytest.raises(UserError, match="several readings of 'a' with seed 1 at its first step, 1"):
        read(put(tmp_path / "a-s1.log", "\n".join(lines)))


@pytest.mark.parametrize("name", ["dataset", "task", "Domain", "type", "kind", "event"])
def test_several_texts_in_one_file_are_refused_whatever_they_are_called(tmp_path, name):
    rows = [{"step": n, name: text, "loss": 3 + n} for n in (1, 2) for text in ("wiki", "code")]
    path = write_csv(tmp_path / "a-s1.csv", rows)
    refuses(f"column '{name}' of .* holds 'code', 'wiki', whose loss", read, path)
    # One text behind the other, as of a curriculum, is one run, though it was resumed.
    rows = [{"step": n, name: "wiki" if n < 4 else "code", "loss": n} for n in (1, 2, 3, 3, 4, 5)]
    (found,) = read(write_csv(tmp_path / "a-s1.csv", rows))
    assert found.again == 1
