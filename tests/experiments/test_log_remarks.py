"""What is remarked on logs of which nothing else tells that another loss or step is judged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import layerlab
from layerlab.experiments.log_remarks import list_remarks
from layerlab.experiments.log_values import JudgedStep
from tests.experiments.test_judge_logs import judged, log, pair
from tests.logs.written import put, write_csv
from tests.support.refused import refuses


@pytest.mark.parametrize("apart", [0, 1])
def test_words_by_which_readings_may_be_of_several_texts_are_remarked_on(tmp_path, apart):
    """In blocks, or at steps of their own, nothing else tells them from those of a resumed run."""
    text = "".join(
        json.dumps({"arm": arm, "seed": seed, "step": step + apart * (name == "b"), "name": name})[
            :-1
        ]
        + f', "loss": {3 + seed / 7 + len(arm) * (step + seed) / 999 + (name == "b")}}}\n'
        for arm in ("plain", "wide")
        for seed in range(3)
        for name, steps in (("a", (10, 20, 30)), ("b", (20, 30)))
        for step in steps
    )
    remarks = layerlab.judge(put(tmp_path / "runs.jsonl", text)).content["remarks"]
    assert any("have several words in 'name': of several texts, keep" in one for one in remarks)


def write_runs(folder: Path, steps: list[float], **cells: object) -> list[Path]:
    """Write two arms of three seeds, each a table with these steps and cells."""
    return [
        write_csv(
            folder / f"{arm}-s{seed}" / "metrics.csv",
            [
                {"step": step, "loss": 3 + seed / 7 + len(arm) * (row + seed) / 999, **cells}
                for row, step in enumerate(steps)
            ],
        )
        for arm in ("plain", "wide")
        for seed in range(3)
    ]


def said(folder: Path, start: str) -> list[str]:
    return [one for one in layerlab.judge(folder).content["remarks"] if start in one]


def test_rows_that_go_back_without_repeating_a_step(tmp_path):
    """Steps that begin anew with each epoch: the largest is not the last."""
    write_runs(tmp_path, [50, 1000, 30, 730])
    (told,) = said(tmp_path, "whose rows go back behind the step that is judged")
    assert told.endswith(
        "plain, seed 0 (to 730), plain, seed 1 (to 730), plain, seed 2 (to 730), "
        "wide, seed 0 (to 730), wide, seed 1 (to 730), wide, seed 2 (to 730)"
    )


def test_logs_of_a_run_that_are_not_read(tmp_path):
    """Of a run that left several kinds the first counts, and may have the loss in training."""
    for path in write_runs(tmp_path, [10, 20]):
        (path.parent / "eval.log").write_text("step 20: val loss 3.5\n")
    (told,) = said(tmp_path, "logs of the same runs that were not read: eval.log (plain, seed 0); ")
    assert told.count("eval.log") == 6


def test_runs_that_go_on_for_long_behind_the_last_loss(tmp_path):
    write_runs(tmp_path, [10, 20, 30])
    assert not said(tmp_path, "go on for long")
    for path in tmp_path.rglob("metrics.csv"):
        path.write_text(path.read_text() + "".join(f"{step},\n" for step in (40, 100)))
    (told,) = said(tmp_path, "runs that go on for long behind the last loss that was read")
    assert "plain, seed 0 (30 of 100)" in told


def test_other_metrics_of_trackers_are_told(tmp_path):
    runs = [(arm, seed) for arm in ("a", "bb") for seed in (1, 2)]
    rows = [
        {"Step": step}
        | {f"{arm}-s{n} - loss": 3 + n / 7 + len(arm) * (step + n) / 99 for arm, n in runs}
        | {f"{arm}-s{n} - eval_c4": 3.0 for arm, n in runs}
        for step in (10, 20)
    ]
    path = write_csv(tmp_path / "wandb.csv", rows)
    (told,) = [one for one in layerlab.judge(path).content["remarks"] if "beside it stand" in one]
    assert "beside it stand eval_c4, which --loss may name" in told


def test_a_copy_in_another_arm_is_remarked_on():
    """Two arms may be the same at every seed; at one of several they are not by chance."""
    logs = pair()
    copied = log("wide", 9, 0, losses=logs[0].losses)
    remarks = judged([*logs, copied])["remarks"]
    assert any(
        "wide, seed 9 (wide-9.csv) has the readings of plain, seed 0" in one for one in remarks
    )
    same = log("wide", 0, 0, losses=logs[0].losses)
    others = [one for one in logs if (one.arm, one.seed) != ("wide", "0")]
    remarks = judged([*others, same])["remarks"]
    assert any("wide, seed 0 (wide-0.csv) has the readings of plain" in one for one in remarks)
    plain = [one for one in logs if one.arm == "plain"]
    nothing = [replace(one, arm="wide") for one in plain]
    remarks = judged([*plain, *nothing])["remarks"]
    assert not any("has the readings of" in one for one in remarks)


@pytest.mark.parametrize("heading", ["Validation", "Running validation...", "=== eval ==="])
def test_losses_below_a_heading_are_not_mixed(tmp_path, heading):
    text = f"Training\nstep 10 loss 4.79\n{heading}\nstep 15 loss 5.1\nTraining\nstep 20 loss 3.2\n"
    said = "may be of held-out text and are not read, as 'step 15 loss"
    refuses(said, layerlab.judge, put(tmp_path / "a-s1.log", text))


def test_a_line_with_two_steps_has_the_one_of_all_epochs(tmp_path):
    for arm in ("plain", "wide"):
        for seed in (1, 2):
            lines = [
                f"epoch 1 step {n % 2}/2 global_step {n} loss {3 + seed / 7 + len(arm) * n / 99}"
                for n in range(1, 5)
            ]
            put(tmp_path / f"{arm}-s{seed}.log", "\n".join(lines) + "\n")
    assert layerlab.judge(tmp_path).content["step"] == 4


def test_two_sets_under_one_name_are_refused(tmp_path):
    text = "[c4] step 100: val loss 4.7\n[wiki] step 101: val loss 5.2\n"
    refuses("may be of unlike losses: ", layerlab.judge, put(tmp_path / "a-s1.log", text))


def test_counted_rows_are_held_against_no_steps(tmp_path):
    logs = [log("plain", 0, 3.0, step_name="rows"), *pair()[1:]]
    refuses(r"are counted in 'step' .* and those of .* in 'rows'", judged, logs, JudgedStep())


@pytest.mark.parametrize("name", ["num_input_tokens_seen", "train/tokens"])
def test_updates_of_unlike_numbers_of_tokens_are_remarked_on(tmp_path, name):
    def write(pace: dict[str, int]) -> None:
        for arm, tokens in pace.items():
            for seed in range(3):
                rows = [
                    {"step": step, "loss": 3 + seed / 7 + step * seed / 999, name: step * tokens}
                    for step in (10, 20, 30)
                ]
                write_csv(tmp_path / f"{arm}-s{seed}" / "metrics.csv", rows)

    write({"plain": 1024, "wide": 2048})
    (told,) = said(tmp_path, "updates are of unlike numbers of tokens")
    assert "1,024 (plain, seed 0) to 2,048 (wide, seed 2); at one step" in told
    write({"plain": 1024, "wide": 1030})
    assert not said(tmp_path, "unlike numbers of tokens")


def test_tokens_of_one_update_alone_are_no_count(tmp_path):
    write_runs(tmp_path, [10, 20, 30], tokens=512)
    assert not said(tmp_path, "unlike numbers of tokens")


def test_unlike_updates_at_one_epoch_are_remarked_on(tmp_path):
    for arm, updates in (("plain", 500), ("wide", 1000)):
        for seed in range(3):
            rows = [
                {"epoch": epoch, "step": epoch * updates, "loss": 3 + seed / 7 - epoch * seed / 99}
                for epoch in (1, 2)
            ]
            write_csv(tmp_path / f"{arm}-s{seed}" / "metrics.csv", rows)
    said = "runs made unlike numbers of updates: 1,000 (plain, seed 0) to 2,000 (wide"
    told = layerlab.judge(tmp_path, step="epoch").content["remarks"]
    assert sum(one.startswith(said) for one in told) == 1


def test_seeds_of_configurations_are_held_against_those_of_pairs():
    logs = pair()
    same = [replace(one, config={"train.seed": int(one.seed or 0)}) for one in logs]
    assert not any("other seeds" in one for one in list_remarks(same))
    others = list_remarks([replace(one, config={"seed": 42}) for one in logs])
    (told,) = [one for one in others if "other seeds" in one]
    assert told.startswith("8 configurations have other seeds") and "plain, seed 0 (42)" in told


def test_seeds_that_are_words_are_told_with_their_numbers():
    # In the order of the words 10 comes before 2, and a verdict tells of seed 2.
    words = {0: "s1", 1: "s10", 2: "s2", 3: "s3"}
    named = [replace(one, seed=words[int(one.seed or 0)]) for one in pair()]
    (told,) = [one for one in judged(named)["remarks"] if "under numbers" in one]
    assert told.endswith("under numbers: 2 = s10, 3 = s2, 4 = s3")
    padded = [replace(one, seed=f"s0{int(one.seed or 0) + 1}") for one in pair()]
    assert not any("under numbers" in one for one in judged(padded)["remarks"])
    many = [log(arm, f"w{n:02}", 3 + n / 97) for arm in ("a", "b") for n in range(30)]
    assert judged(many)["remarks"][-1].endswith("20 = w19, ...")
