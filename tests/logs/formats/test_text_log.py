"""Lines of text: which loss of a line is judged, and at which step."""

import json
import math

import numpy as np
import pytest

from layerlab import UserError
from tests.logs.written import ROWS, check, put, read
from tests.support.refused import refusal, refuses


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([f"step {r['step']}: train loss 9.9, val loss {r['loss']}" for r in ROWS], None),
        ([f"step:{r['step']}/99 val_loss:{r['loss']} time:3ms" for r in ROWS], None),
        ([f"iter {r['step']}: loss {r['loss']}, time 3ms" for r in ROWS], None),
        (  # DeepSpeed
            [f"steps: {r['step']} loss: {r['loss']} iter time (s): 1.2" for r in ROWS],
            None,
        ),
        (
            [f"[{r['step']}] L={r['loss']}" for r in ROWS],
            r"\[(?P<step>\d+)\] L=(?P<loss>\S+)",
        ),
        (  # llm.c
            ["val loss 11.0", *(f"step {r['step']}/9 | 3 ms\nval loss {r['loss']}" for r in ROWS)],
            r"step +(?P<step>\d+)/|val loss (?P<loss>\S+)",
        ),
        (  # OLMo
            [f"[step={r['step']}/9]\n    train/PPL=3.1\n    eval/CE={r['loss']}" for r in ROWS],
            r"step=(?P<step>\d+)|eval/CE=(?P<loss>\S+)",
        ),
    ],
)
def test_lines_of_text(lines, line, tmp_path):
    path = tmp_path / "plain-s1.log"
    path.write_text("\n".join(["starting", *lines, "done"]))
    (found,) = read(path, **({} if line is None else {"line": line}))
    check(found, "plain", "1")


def test_lines_say_which_loss_it_is_and_thousands_are_one_number(tmp_path):
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
    "lm loss: {} | mtp_1 loss: 1.5": "lm_loss",
    "loss: {} | loss2: 0.5": "loss",
    "loss {}, mean loss info, loss {}": "loss",
}


@pytest.mark.parametrize(("line", "name"), KINDS.items())
def test_of_several_losses_in_a_line_one_has_the_name_that_is_judged(tmp_path, line, name):
    lines = [f"step {r['step']}/30 | {line.format(*[r['loss']] * 2)}" for r in ROWS]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")
    assert found.loss_name == name


def test_losses_of_unlike_lines_are_told_apart(tmp_path):
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
        ("step {} holdout loss {}", "held_out_loss"),
        ("step {}: loss {} (val)", "val_loss"),
        ("step {}: loss {} on validation set", "validation_loss"),
    ],
)
def test_losses_on_held_out_text_are_no_readings_of_training(tmp_path, line, name):
    """As torchtitan prints them, at steps at which it logs its training loss, too."""
    lines = []
    for row in ROWS:
        lines += [f"step: {row['step']}  loss: 9.5  memory: 3GiB"]
        lines += [line.format(row["step"], row["loss"])]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")
    assert found.loss_name == name


MEGATRON = " validation loss at iteration {} | lm loss value: {}E+00 | lm loss PPL: 3.1E+01 |"
UNREAD = (
    "validation loss {1} at step {0}",
    "epoch {0} validation loss: {1}",
    "step {0} val ppl {1}",
    "step {0} val/cross_entropy {1}",
    "step {0} eval bits_per_byte {1}",
    "val loss is {1}",
    "Validation loss after {0} steps: {1}",
    "loss on validation set: {1}",
    "val loss -> {1}",
    "val loss avg: {1}",
    "val_loss_mean: {1}",
    "val loss: **{1}**",
    "| val loss | {1} |",
    "Validation: {1}",
    "val/wikitext {1}",
    "{{'eval_loss': {1}, 'epoch': 1.0}}",
    "--- evaluation ---\nloss {1}",
    # What is told beside a loss in training does not make it one on held-out text.
    "step 4{0} | loss 9.5 | evaluating...\nval loss: {1}",
    "step 4{0} | loss 9.5 | next eval soon\nval loss: {1}",
    "step 4{0} loss 9.5 best val: n/a",
    "step 4{0} loss 9.5 val loss (wiki): {1}",
    "step 4{0} | loss 9.5 | val {1}",
)


@pytest.mark.parametrize("line", UNREAD)
def test_losses_on_held_out_text_that_cannot_be_read_are_not_passed_over(tmp_path, line):
    rows = [(row["step"], row["loss"]) for row in ROWS]
    text = "\n".join(f"step {a} loss 9.5\n{line.format(a, b)}" for a, b in rows)
    path = put(tmp_path / "plain-s1.log", text)
    refuses(r"be of held-out text and are not read, as .*; type", read, path)
    assert set(read(path, loss="loss")[0].losses) == {9.5}


@pytest.mark.parametrize("mark", ["", "'"])
def test_what_trainer_prints_has_no_step_and_is_read_by_its_epochs(tmp_path, mark):
    lines = ["{'loss': 9.5, 'epoch': 0.1}"]
    for row in ROWS:
        loss, epoch = (f"{mark}{row[name]}{mark}" for name in ("loss", "step"))
        lines.append(f"{{'eval_loss': {loss}, 'eval_runtime': 1.2, 'epoch': {epoch}}}")
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    said = refusal(read, path)
    assert "in which no step stands; give the trainer_state.json of its last checkpoint" in said
    check(read(path, line=said.split('--line "')[1][:-1])[0], "plain", "1")


def test_another_measure_on_held_out_text_in_the_same_line_is_not_passed_over(tmp_path):
    lines = [f"step {row['step']} loss {row['loss']}, val ppl 9.5" for row in ROWS]
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    refuses(r"are not read, as 'step 10 loss 3\.5, val ppl 9\.5'", read, path)
    check(read(path, loss="loss")[0], "plain", "1")


def test_lines_of_json_in_a_text_are_read_as_such(tmp_path):
    text = "".join(
        json.dumps({"lr": 1, "val_loss": r["loss"], "step": r["step"]}) + "\n" for r in ROWS
    )
    check(read(put(tmp_path / "plain-s1.log", text))[0], "plain", "1")
    said = [json.dumps({"msg": f"step {row['step']} loss {row['loss']}"}) for row in ROWS]
    check(read(put(tmp_path / "plain-s1.txt", "\n".join(said)))[0], "plain", "1")


def test_a_run_whose_last_lines_have_no_loss_any_more_does_not_end_with_the_last_one(tmp_path):
    lines = [
        f" iteration {row['step']}/ 90 | lm loss: {row['loss']} | grad norm: 1" for row in ROWS
    ]
    lines += [f" iteration {step}/ 90 | number of nan iterations: 10 |" for step in (40, 50)]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    assert found.steps.tolist() == [row["step"] for row in ROWS] and found.blank == 50


def test_both_losses_of_megatron_are_told_apart(tmp_path):
    train = " iteration {:8}/ 500 | consumed samples: 9 | lm loss: 9.5E+00 | grad norm: 1.0 |"
    held = MEGATRON + " mtp_1 loss value: 1.0E+00 | mtp_1 loss PPL: 2.7E+00 |"
    lines = [one.format(row["step"], row["loss"]) for row in ROWS for one in (train, held)]
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    check(read(path)[0], "plain", "1")
    assert set(read(path, loss="lm_loss")[0].losses) == {9.5}


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(eval_interval=1000, loss_scale=1, eval_iters=200, loss_fn='ce')",
        "--eval-interval 100 --loss ce",
        "step 40 | test acc 0.41",
        "evaluating checkpoint-100",
        "latest loss: 3.4",
        "0.1 s of eval time, 3 steps",
    ],
)
def test_what_is_no_loss_on_held_out_text_refuses_no_log(tmp_path, line):
    lines = [line, *(f"step {row['step']} loss {row['loss']} | test acc 0.4" for row in ROWS)]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")
    assert found.loss_name == "loss"


@pytest.mark.parametrize("line", ["step={} loss=9.5 val_loss={}", "step {}: loss 9.5, val loss {}"])
def test_two_losses_in_a_line_are_each_called_by_their_own_words(tmp_path, line):
    lines = [line.format(row["step"], row["loss"]) for row in ROWS]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")
    assert found.loss_name == "val_loss"


def test_a_configuration_is_no_reading(tmp_path):
    lines = ["Namespace(max_step=5000, aux_loss=0.01, loss=1.0)"]
    lines += [f"step {row['step']} loss {row['loss']}" for row in ROWS]
    check(read(put(tmp_path / "plain-s1.log", "\n".join(lines)))[0], "plain", "1")


@pytest.mark.parametrize(
    ("written", "steps"),
    [
        (("1k", "1.5k", "2k"), [1000, 1500, 2000]),
        (("1_000", "1_500", "2_000"), [1000, 1500, 2000]),
        (("0.5M/2M", "1M/2M", "2M/2M"), [5e5, 1e6, 2e6]),
    ],
)
def test_steps_are_read_as_they_are_meant(tmp_path, written, steps):
    text = "\n".join(f"step {one} loss 3.{number}" for number, one in enumerate(written))
    assert read(put(tmp_path / "a-s1.log", text))[0].steps.tolist() == steps


def test_a_text_of_powershell_and_a_table_of_keras_are_read(tmp_path):
    text = "\n".join(f"step {row['step']} loss {row['loss']}" for row in ROWS)
    (tmp_path / "plain-s1.log").write_bytes(text.encode("utf-16"))
    check(read(tmp_path / "plain-s1.log")[0], "plain", "1")
    table = "\n".join(["epoch,accuracy,loss,val_loss", "0,0.1,9.5,3.5", "1,0.2,9.5,3.25"])
    (found,) = read(put(tmp_path / "wide-s1.log", table))
    assert (found.loss_name, found.losses.tolist()) == ("val_loss", [3.5, 3.25])


@pytest.mark.parametrize("name", ["a-s1.log", "a-s1.csv"])
def test_a_last_line_without_an_end_is_known(tmp_path, name):
    text = "step,loss\n1,2.5\n2,2" if name.endswith("csv") else "step 1 loss 2.5\nstep 2 loss 2"
    assert read(put(tmp_path / name, text))[0].cut
    assert not read(put(tmp_path / name, text + "\n"))[0].cut


def test_plain_losses_behind_unlike_words_are_refused(tmp_path):
    lines = [f"{word}step {r['step']} loss {r['loss']}" for r in ROWS for word in ("", "probe: ")]
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    refuses(r"may be of unlike losses: 'step 10 .* and 'probe: step", read, path)
    (found,) = read(path, line=r"probe.*step (?P<step>\d+).*loss (?P<loss>\S+)")
    check(found, "plain", "1")


def test_words_that_come_and_go_with_the_time_are_of_no_other_loss(tmp_path):
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
def test_lines_are_read_in_colours_and_with_other_signs(tmp_path, line):
    lines = [line.format(row["step"], row["loss"]) for row in ROWS]
    (found,) = read(put(tmp_path / "plain-s1.log", "\n".join(lines)))
    check(found, "plain", "1")


def test_a_line_that_is_not_known_is_shown(tmp_path):
    said = r"no line that nanoGPT would write, as 'after 5: loss 3\.2'; type --line"
    refuses(said, read, put(tmp_path / "a-s1.log", "begin\nafter 5: loss 3.2\n"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("loss 2.5, loss 2.7", r"two losses of one name, loss, 2\.5 and 2\.7: 'step 5: loss"),
        ("val loss 3,21", "the group loss is '3,21' in a line of .*; expected a number, as 3.2"),
        ("loss 1.12k", r"the group loss is '1\.12k' in a line of .*; expected a number, as 3.2"),
        ("loss 1.#QNAN", r"the group loss is '1\.#QNAN' in a line of"),
        ("loss 1,003.5", r"the group loss is '1,003\.5' in a line of"),
        ("aux loss 2.5, mtp loss 2.7", "--loss COLUMN, one of 'step', 'aux_loss', 'mtp_loss'"),
    ],
)
def test_a_line_that_does_not_say_which_loss_is_meant_is_refused(tmp_path, line, said):
    refuses(said, read, put(tmp_path / "a-s1.log", f"step 5: {line}"))


@pytest.mark.parametrize(
    ("number", "value"), [("tensor(3.25)", 3.25), ("Infinity", math.inf), ("-nan(ind)", math.nan)]
)
def test_numbers_are_read_as_python_and_c_write_them(number, value, tmp_path):
    (found,) = read(put(tmp_path / "a-s1.log", f"step 5: loss 3.5\nstep 9: loss {number}, lr 1\n"))
    np.testing.assert_equal(found.losses, [3.5, value])


def test_a_score_behind_a_line_is_no_loss(tmp_path):
    lines = [f"step {row['step']} acc@1 {row['loss']}" for row in ROWS]
    path, line = (
        put(tmp_path / "plain-s1.log", "\n".join(lines)),
        r"step (?P<step>\d+).* (?P<loss>\S+)",
    )
    refuses(r"has 'acc_1' before the group loss .* type --loss acc_1=", read, path, line=line)
    (found,) = read(path, line=line, loss="acc")
    check(found, "plain", "1")
    assert found.loss_name == "acc"


def test_a_line_that_fits_two_kinds_is_refused(tmp_path):
    """Training and held-out text at other steps."""
    lines = []
    for row in ROWS:
        lines += [
            f"step {row['step'] - 1} | loss 9.5",
            f"step {row['step']} | val loss {row['loss']}",
        ]
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    with pytest.raises(
        UserError, match=r"fits lines that may be of unlike losses: 'step 9 \| loss"
    ):
        read(path, line=r"step (?P<step>\d+).*loss (?P<loss>\S+)")
    (found,) = read(path, line=r"step (?P<step>\d+).*val loss (?P<loss>\S+)")
    check(found, "plain", "1")


def test_a_unit_before_a_loss_is_no_word_of_it(tmp_path):
    units = {10: "s", 20: "ms", 30: "s"}
    lines = [f"step {r['step']} took 9{units[r['step']]} loss {r['loss']}" for r in ROWS]
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    (found,) = read(path, line=r"step (?P<step>\d+).*loss (?P<loss>\S+)")
    check(found, "plain", "1")


@pytest.mark.parametrize("pair", ["train/val loss: 9.5/{}", "loss 9.5 / {}"])
def test_two_numbers_behind_a_loss_are_refused(tmp_path, pair):
    lines = [f"step {row['step']} | {pair.format(row['loss'])}" for row in ROWS]
    path = put(tmp_path / "plain-s1.log", "\n".join(lines))
    refuses("has two numbers behind a loss, as 'step 10", read, path)
    (found,) = read(path, line=r"step (?P<step>\d+).*loss:? [^/]*/ ?(?P<loss>\S+)")
    check(found, "plain", "1")
