"""Which loss of a log is judged: one on held-out text before any other, and never in silence."""

import json

import pytest

import layerlab
from layerlab import UserError
from tests.logs.written import LOSSES, ROWS, check, put, read, write_csv
from tests.support.refused import refuses

NAMES = (
    *("eval_wiki_loss", "loss/val", "valid_ppl", "validPerplexity", "testloss", "dev/nll", "vloss"),
    *(
        "lossval",
        "holdout_loss",
        "eval/c4/bits_per_byte",
        "val_cross_entropy",
        "ood_loss",
        "c4_val",
    ),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("train", ["loss", "train_loss"])
def test_a_training_loss_is_not_judged_in_silence_beside_one_on_held_out_text(
    tmp_path, train, name
):
    rows = [{"step": one["step"], train: 9.5, name: one["loss"]} for one in ROWS]
    path = write_csv(tmp_path / "plain-s1.csv", rows)
    with pytest.raises(UserError) as caught:
        read(path)
    told = f"losses on held-out text: {name!r}; say which is judged: --loss {name}, or --loss "
    assert told + train in str(caught.value)
    check(read(path, loss=name)[0], "plain", "1")
    assert read(path, loss=train)[0].losses.tolist() == [9.5] * 3


def test_several_texts_of_trainer_are_named(tmp_path):
    """What an eval_dataset of several parts leaves."""
    history = [{"step": one["step"], "loss": 9.5} for one in ROWS]
    for text in ("wiki", "books"):
        history += [{"step": one["step"], f"eval_{text}_loss": one["loss"]} for one in ROWS]
    (tmp_path / "plain-s1").mkdir()
    path = put(tmp_path / "plain-s1/trainer_state.json", json.dumps({"log_history": history}))
    refuses("held-out text: 'eval_wiki_loss', 'eval_books_loss'; say", read, path)
    check(read(path, loss="eval_books_loss")[0], "plain", "1")


@pytest.mark.parametrize(
    "name", ["val_loss_epoch", "val/loss_epoch", "Val_Loss", "lm loss validation"]
)
def test_a_loss_on_held_out_text_is_known_by_its_usual_names(tmp_path, name):
    rows = [{"step": one["step"], "train_loss": 9.5, name: one["loss"]} for one in ROWS]
    (found,) = read(write_csv(tmp_path / "plain-s1.csv", rows))
    check(found, "plain", "1")
    assert found.loss_name == name


@pytest.mark.parametrize("name", ["value_loss", "eval_runtime", "eval_accuracy", "test_time"])
def test_what_is_no_loss_on_held_out_text_is_passed_over(tmp_path, name):
    rows = [{**one, name: 1.5} for one in ROWS]
    (found,) = read(write_csv(tmp_path / "plain-s1.csv", rows))
    check(found, "plain", "1")


def test_metrics_of_trackers_are_chosen_as_columns_are(tmp_path):
    wandb = [
        {"Step": one["step"], "plain-s1 - loss": 9.5, "plain-s1 - eval/wiki_loss": one["loss"]}
        for one in ROWS
    ]
    mlflow = [
        {"run_id": "plain", "key": key, "step": 10 * step, "value": loss}
        for step, loss in enumerate(LOSSES, start=1)
        for key in ("loss", "eval/wiki_loss")
    ]
    for name, rows in (("wandb.csv", wandb), ("mlflow.csv", mlflow)):
        with pytest.raises(
            UserError, match=f"{name} has 'loss', and what may be losses on held-out"
        ):
            read(write_csv(tmp_path / name, rows))
    (found,) = read(tmp_path / "wandb.csv", loss="eval/wiki_loss")
    check(found, "plain", "1")


def test_what_else_may_be_a_loss_is_told_beside_one_in_training(tmp_path):
    """Its name says of no text that it is held out, and may be known to be."""
    rows = [
        {"arm": arm, "seed": seed, "step": 9, "loss": 3 + seed / 7 + len(arm) / 99, "wiki_ppl": 1.5}
        for arm in ("plain", "wide")
        for seed in range(3)
    ]
    path = write_csv(tmp_path / "runs.csv", rows)
    told = "; beside it stand wiki_ppl, which --loss may name"
    assert layerlab.judge(path).content["remarks"][0].endswith(told)
    assert not layerlab.judge(path, loss="loss").content["remarks"][0].endswith(told)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("name", "values"), [("tag", ("fit", "check")), ("who", (0, 1))])
def test_two_kinds_of_readings_at_each_step_are_refused(tmp_path, name, values, first):
    """Of a step that was logged again the last reading counts, which is of whatever stands last."""
    rows = [
        {"step": one["step"], "loss": one["loss"] + 6 * kind, name: values[kind]}
        for one in ROWS
        for kind in (first, 1 - first)
    ]
    rows = [{**rows[0], "step": 5}, *rows]
    text = "".join(json.dumps(one) + "\n" for one in rows)
    with pytest.raises(UserError, match=f"3 steps: they are of two kinds, as the column '{name}'"):
        read(put(tmp_path / "plain-s1.jsonl", text))


def test_a_resumed_run_has_no_two_kinds(tmp_path):
    steps = [10, 20, 30, 20, 30, 40]
    rows = [{"step": step, "loss": 3 - number / 10} for number, step in enumerate(steps)]
    (found,) = read(write_csv(tmp_path / "plain-s1.csv", rows))
    assert found.steps.tolist() == [10, 20, 30, 40] and found.again == 2
    assert found.resumed is None
    (found,) = read(write_csv(tmp_path / "plain-s1.csv", rows[:4]))
    assert (found.again, found.resumed) == (1, 20)


@pytest.mark.parametrize("head", ['{"seed": 1, "lr": 0.1}', '{"type": "config", "arm": "b"}'])
def test_a_line_of_settings_tells_no_runs_apart(tmp_path, head):
    text = "\n".join([head, *map(json.dumps, ROWS)]) + "\n"
    (found,) = read(put(tmp_path / "plain-s1.jsonl", text))
    check(found, "plain", "1")


def test_readings_that_are_written_twice_are_no_two_kinds(tmp_path):
    """Also those that are no number."""
    rows = [{"step": step, "loss": loss} for step, loss in ((5, 9.5), (10, 3.5), (10, 3.5))]
    rows += [{"step": step, "loss": "nan"} for step in (20, 20, 30, 30)]
    (found,) = read(write_csv(tmp_path / "plain-s1.csv", rows))
    assert found.steps.tolist() == [5, 10, 20, 30] and found.again == 3


def test_a_run_whose_losses_stand_in_another_column_is_no_diverged_one(tmp_path):
    """As where two tables are put together whose columns are called otherwise."""
    rows = [
        {"arm": arm, "step": step, "eval_loss": None, "val_loss": None, name: 3.0 - step / 100}
        for arm, name in (("plain", "val_loss"), ("wide", "eval_loss"))
        for step in (10, 20)
    ]
    said = r"'plain' has no number in the column 'eval_loss' of .* and some in 'val_loss'"
    refuses(said, read, write_csv(tmp_path / "runs.csv", rows))


HELD = "losses on held-out text: '(a/)?eval[_/]wiki_loss'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"step": 10, "loss": 9, "eval_wiki_loss": "3.5"}\n', HELD),
        ('{"step": 10, "loss": 9, "eval_wiki_loss": [3.5]}\n', HELD),
        ('{"step": 10, "loss": 9, "eval": {"wiki_loss": 3.5}}\n', HELD),
        ('{"step": 10, "train": {"loss": 9}, "a": {"eval": {"wiki_loss": 3.5}}}\n', HELD),
        ('{"step": 10, "loss": 9, "eval_wiki_loss": "-"}\n{"step": 20, "loss": 9}\n', HELD),
        (  # a final evaluation at the last step, which is no reading of training
            '{"step": 20, "loss": 3.25}\n{"step": 30, "loss": 3.125}\n'
            '{"step": 30, "loss": 9, "note": "final"}\n',
            r"3\.125 and 9 at step 30: they are of two kinds, as",
        ),
    ],
)
def test_two_kinds_of_losses_are_told_apart(tmp_path, text, said):
    refuses(said, read, put(tmp_path / "plain-s1.jsonl", text))


def test_a_loss_inside_of_an_object_is_read(tmp_path):
    rows = [{"step": one["step"], "loss": 9, "eval": {"loss": one["loss"]}} for one in ROWS]
    text = "".join(json.dumps(one) + "\n" for one in rows)
    (found,) = read(put(tmp_path / "plain-s1.jsonl", text))
    check(found, "plain", "1")
    assert found.loss_name == "eval/loss"


def test_what_trackers_count_by_themselves_is_no_step_where_there_is_one(tmp_path):
    rows = [{"_step": n, "iter": one["step"], "loss": one["loss"]} for n, one in enumerate(ROWS)]
    (found,) = read(write_csv(tmp_path / "plain-s1.csv", rows))
    check(found, "plain", "1")
