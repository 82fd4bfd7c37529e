"""Which loss of a log is judged: one on held-out text before any other, and never in silence."""

import json
from pathlib import Path

import pytest

from layerlab import UserError
from tests.logs.written import LOSSES, ROWS, check, put, read, write_csv

NAMES = ("eval_wiki_loss", "loss/val", "valid_ppl", "validPerplexity", "testloss", "dev/nll")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("train", ["loss", "train_loss"])
def test_a_training_loss_is_not_judged_in_silence_beside_one_on_held_out_text(
    tmp_path: Path, train: str, name: str
) -> None:
    rows = [{"step": one["step"], train: 9.5, name: one["loss"]} for one in ROWS]
    path = write_csv(tmp_path / "plain-s1.csv", rows)
    with pytest.raises(UserError) as caught:
        read(path)
    told = f"losses on held-out text: {name!r}; say which is judged: --loss {name}, or --loss "
    assert told + train in str(caught.value)
    check(read(path, loss=name)[0], "plain", "1")
    assert read(path, loss=train)[0].losses.tolist() == [9.5] * 3


def test_several_texts_of_trainer_are_named(tmp_path: Path) -> None:
    """What an eval_dataset of several parts leaves."""
    history = [{"step": one["step"], "loss": 9.5} for one in ROWS]
    for text in ("wiki", "books"):
        history += [{"step": one["step"], f"eval_{text}_loss": one["loss"]} for one in ROWS]
    (tmp_path / "plain-s1").mkdir()
    path = put(tmp_path / "plain-s1/trainer_state.json", json.dumps({"log_history": history}))
    with pytest.raises(UserError, match="held-out text: 'eval_wiki_loss', 'eval_books_loss'; say"):
        read(path)
    check(read(path, loss="eval_books_loss")[0], "plain", "1")


@pytest.mark.parametrize("name", ["val_loss_epoch", "val/loss_epoch", "Val_Loss"])
def test_a_loss_on_held_out_text_is_known_by_its_usual_names(tmp_path: Path, name: str) -> None:
    rows = [{"step": one["step"], "train_loss": 9.5, name: one["loss"]} for one in ROWS]
    (found,) = read(write_csv(tmp_path / "plain-s1.csv", rows))
    check(found, "plain", "1")
    assert found.loss_name == name


@pytest.mark.parametrize("name", ["value_loss", "eval_runtime", "eval_accuracy", "test_time"])
def test_what_is_no_loss_on_held_out_text_is_passed_over(tmp_path: Path, name: str) -> None:
    rows = [{**one, name: 1.5} for one in ROWS]
    (found,) = read(write_csv(tmp_path / "plain-s1.csv", rows))
    check(found, "plain", "1")


def test_metrics_of_trackers_are_chosen_as_columns_are(tmp_path: Path) -> None:
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
