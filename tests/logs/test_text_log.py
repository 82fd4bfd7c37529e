"""Lines of text: which loss of a line is judged, and at which step."""

from pathlib import Path

import pytest

from layerlab import UserError
from tests.logs.written import ROWS, check, put, read


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([f"step {r['step']}: train loss 9.9, val loss {r['loss']}" for r in ROWS], None),
        ([f"step:{r['step']}/99 val_loss:{r['loss']} time:3ms" for r in ROWS], None),
        ([f"iter {r['step']}: loss {r['loss']}, time 3ms" for r in ROWS], None),
        (
            [f"[{r['step']}] L={r['loss']}" for r in ROWS],
            r"\[(?P<step>\d+)\] L=(?P<loss>\S+)",
        ),
    ],
)
def test_lines_of_text(lines: list[str], line: str | None, tmp_path: Path) -> None:
    path = tmp_path / "plain-s1.log"
    path.write_text("\n".join(["starting", *lines, "done"]))
    (found,) = read(path, **({} if line is None else {"line": line}))
    check(found, "plain", "1")


def test_lines_say_which_loss_it_is_and_thousands_are_one_number(tmp_path: Path) -> None:
    (held,) = read(put(tmp_path / "a.log", "step 900: val loss 3.6\nstep 1,000: val loss 3.5\n"))
    assert held.steps.tolist() == [900, 1000] and held.loss_name == "val_loss"
    (train,) = read(put(tmp_path / "b.log", "iter 10: loss 3.5, time 3ms\n"))
    assert train.loss_name == "loss"


KINDS = {
    "aux loss 1.01 | loss {} | lr 1e-3": "loss",
    "loss {} | z-loss 0.5 | aux2_loss: 1.5": "loss",
    "best val loss 2.5, val loss {}": "val_loss",
    "train/loss 2.5 val/loss {}": "val_loss",
    "train loss 2.5, test loss {}": "test_loss",
    "dt 3ms loss {} (loss explodes)": "loss",
    "lm loss: {}": "lm_loss",
    "loss {}, mean loss info, loss {}": "loss",
}


@pytest.mark.parametrize(("line", "name"), KINDS.items())
def test_of_several_losses_in_a_line_one_has_the_name_that_is_judged(
    tmp_path: Path, line: str, name: str
) -> None:
    lines = [f"step {r['step']}/30 | {line.format(*[r['loss']] * 2)}" for r in ROWS]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")
    assert found.loss_name == name


def test_losses_of_unlike_lines_are_told_apart(tmp_path: Path) -> None:
    lines = []
    for row in ROWS:
        lines += [f"[train] step {row['step'] - n}: loss 9.{n}" for n in range(9, 0, -1)]
        lines += [f"[eval] step {row['step']}: loss {row['loss']}"]
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    (found,) = read(path)
    check(found, "plain", "1")
    (train,) = read(path, loss="train_loss")
    assert len(train.losses) == 27 and (train.losses >= 9).all()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("validate step: {}  loss: {}  memory: 3GiB", "val_loss"),
        ("Validating iter {} loss {}", "val_loss"),
        ("evaluate: step {} loss {}", "eval_loss"),
        ("testing step {} loss={}", "test_loss"),
        ("held-out step {} loss {}", "held_out_loss"),
        ("step {} [valid] loss {}", "valid_loss"),
        ("step {} | split=val | loss {}", "val_loss"),
        ("step {} | heldout loss {}", "held_out_loss"),
    ],
)
def test_losses_on_held_out_text_are_no_readings_of_training(
    tmp_path: Path, line: str, name: str
) -> None:
    """As torchtitan prints them, at steps at which it logs its training loss, too."""
    lines = []
    for row in ROWS:
        lines += [f"step: {row['step']}  loss: 9.5  memory: 3GiB"]
        lines += [line.format(row["step"], row["loss"])]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")
    assert found.loss_name == name


def test_plain_losses_behind_unlike_words_are_refused(tmp_path: Path) -> None:
    lines = [f"{word}step {r['step']} loss {r['loss']}" for r in ROWS for word in ("", "probe: ")]
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    with pytest.raises(UserError, match=r"may be of unlike losses: 'step 10 .* and 'probe: step"):
        read(path)
    (found,) = read(path, line=r"probe.*step (?P<step>\d+).*loss (?P<loss>\S+)")
    check(found, "plain", "1")


def test_words_that_come_and_go_with_the_time_are_of_no_other_loss(tmp_path: Path) -> None:
    begin = ("Mon Nov 30 23:59 PM INFO", "Tue Dec  1 00:01 AM WARNING", "2026-12-01T00:02:01Z info")
    lines = [f"{a} step {r['step']} loss {r['loss']}" for a, r in zip(begin, ROWS, strict=True)]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[31mstep:\x1b[0m {}  \x1b[1;32mloss:\x1b[39m {}\x1b[0m",
        "step={} loss={}",
        "Epoch [1/5], Step [{}/600], Loss: {}.",
        "Iteration {}: loss = {}",
    ],
)
def test_lines_are_read_in_colours_and_with_other_signs(tmp_path: Path, line: str) -> None:
    lines = [line.format(row["step"], row["loss"]) for row in ROWS]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")


def test_a_line_that_is_not_known_is_shown(tmp_path: Path) -> None:
    said = r"no line that nanoGPT would write, as 'after 5: loss 3\.2'; type --line"
    with pytest.raises(UserError, match=said):
        read(put(tmp_path / "a-s1.log", "begin\nafter 5: loss 3.2\n"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("loss 2.5, loss 2.7", r"two losses of one name, loss, 2\.5 and 2\.7: 'step 5: loss"),
        ("val loss 3,21", "the group loss is '3,21' in a line of .*; expected a number, as 3.2"),
        ("loss 1,003.5", r"the group loss is '1,003\.5' in a line of"),
        ("aux loss 2.5, mtp loss 2.7", "--loss COLUMN, one of 'step', 'aux_loss', 'mtp_loss'"),
    ],
)
def test_a_line_that_does_not_say_which_loss_is_meant_is_refused(
    tmp_path: Path, line: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        read(put(tmp_path / "a-s1.log", f"step 5: {line}"))
