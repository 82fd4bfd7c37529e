"""The metric block of transformers' run_clm: printed by transformers itself, and by a report."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerCallback
from transformers.trainer_pt_utils import log_metrics, metrics_format

from layerlab.experiments.run_clm_metrics import _format, block, metrics
from tests.support.refused import refuses

# What a report printed for its unmodified model. Its 35,267,072 parameters beside the embedding,
# blocks of 2048 tokens and batches of 16 are what these numbers leave possible.
REPORT = """\
***** train metrics *****
  epoch                    =         5.0
  total_flos               = 137242029GF
  train_loss               =      2.9421
  train_runtime            =  2:25:12.59
  train_samples            =       68009
  train_samples_per_second =      39.029
  train_steps_per_second   =        2.44
***** eval metrics *****
  epoch                   =        5.0
  eval_accuracy           =     0.4916
  eval_loss               =     2.6217
  eval_perplexity         =    13.7592
  eval_runtime            = 0:00:02.32
  eval_samples            =        143
  eval_samples_per_second =     61.511
  eval_steps_per_second   =      7.743"""

BLOCK, SEQUENCES, UPDATES = 2048, 68009, 21255


def write(folder: Path, **changes: Any) -> Path:
    """The files of a run with the report's numbers."""
    tokens = 5 * SEQUENCES * BLOCK
    result = {
        "schema": 1,
        "run": "llama-s1",
        "arm": "llama",
        "seed": 1,
        "rate": 3e-4,
        "nats": math.log(13.7592),
        "bits_per_byte": 0.93,
        "accuracy": 0.4916,
        "step0_nats": 10.4,
        "train_loss": 2.9421,
        "updates": UPDATES,
        "tokens": tokens,
        "seconds": 8712.595,
        "tokens_per_second": tokens / 8712.595,
        "peak_memory_bytes": None,
        "parameters": 51_651_072,
        "flops": 312_213_504 * tokens,
        "diverged": None,
        "weights": "0f",
        "resumes": 1,
        "micro_batch": 16,
        **changes,
    }
    manifest = {
        "run": "llama-s1",
        "arm": "llama",
        "data": {"train_tokens": SEQUENCES * BLOCK, "validation_tokens": 143 * BLOCK},
        "recipe": {
            "data": {"block_size": BLOCK},
            "evaluate": {"max_eval_blocks": None, "batch_size": 8},
        },
        "model": {
            "embedding": 16_384_000,
            "head": 16_384_000,
            "blocks": 18_874_368,
            "scalars": 8_704,
        },
        "batch_tokens": 16 * BLOCK,
    }
    losses = {name: result[name] for name in ("nats", "bits_per_byte", "accuracy")}
    events = [
        {"kind": "train", "update": 1, "loss": 3.8842},
        {"kind": "evaluation", "update": 1, "nats": 4.0, "runtime": 9.0},
        {"kind": "train", "update": UPDATES, "loss": 2.0},
        {"kind": "evaluation", "update": UPDATES, **losses, "runtime": 2.3248},
        {"kind": "note", "update": UPDATES, "text": result["diverged"]},
    ]
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    return folder


class First(TrainerCallback):
    """What transformers asks before it prints."""

    def is_world_process_zero(self) -> bool:
        return True


def test_the_block_of_a_report_is_reproduced_to_the_letter(tmp_path):
    train, evaluation = str(metrics(write(tmp_path))).split("***** eval")
    shown = train + "***** eval" + evaluation.split("\n***** extra")[0]
    assert shown == REPORT


def test_transformers_prints_the_same(tmp_path, capsys):
    found = metrics(write(tmp_path))
    for name in ("train", "eval", "extra"):
        log_metrics(First(), name, getattr(found, name))
    assert capsys.readouterr().out.rstrip("\n") == str(found)


@given(
    st.sampled_from(["train_runtime", "total_flos", "train_loss", "train_samples"]),
    st.integers(0, 2**70) | st.floats(0, 1e9),
)
def test_every_value_is_formatted_as_transformers_does(name, value):
    if name == "train_runtime" and value > 1e9:
        value = value % 10**9
    assert _format(name, value) == metrics_format({name: value})[name]


def test_extras_say_what_was_really_computed(tmp_path):
    extra = metrics(write(tmp_path, micro_batch=8)).extra
    assert extra["batch_sequences"] == 16 and extra["micro_batch_sequences"] == 8
    assert extra["tokens"] == 5 * SEQUENCES * BLOCK == UPDATES * 16 * BLOCK - 35 * BLOCK
    train = metrics(tmp_path).train
    # The block's own count ignores attention: of these blocks a third.
    assert 1.4 < extra["flops_with_attention_and_head"] / train["total_flos"] < 1.6


def test_blocks_are_counted_where_several_texts_are_held_out(tmp_path):
    """Each of two texts ends in a block that is not full."""
    sizes = [*[BLOCK] * 71, 1000, *[BLOCK] * 71, BLOCK - 1000]
    kept = {"nats": [2.0] * len(sizes), "tokens": sizes}
    found = metrics(write(tmp_path, blocks=kept)).eval
    assert found["eval_samples"] == 144
    assert found["eval_samples_per_second"] == pytest.approx(144 / 2.3248, abs=1e-3)


def test_the_loss_of_some_updates_is_not_called_that_of_all(tmp_path):
    """Of runs that an earlier version finished nothing else is known."""
    found = metrics(write(tmp_path, train_loss=None))
    assert "train_loss" not in found.train
    assert found.extra["train_loss_of_journalled_updates"] == pytest.approx((3.8842 + 2) / 2)
    assert "train_loss_of_journalled_updates" not in metrics(write(tmp_path)).extra


def test_numbers_are_written_as_run_clm_writes_them(tmp_path):
    shown = block(write(tmp_path))
    assert shown.startswith("***** train metrics *****\n  epoch ")
    train = json.loads((tmp_path / "train_results.json").read_text())
    every = json.loads((tmp_path / "all_results.json").read_text())
    assert train["total_flos"] == 6 * train["train_samples"] * 5 * BLOCK * 35_267_072
    assert every["eval_loss"] == pytest.approx(2.6217, abs=1e-4) and every["seed"] == 1


def test_a_run_that_diverged_has_no_evaluation(tmp_path):
    none = {"nats": None, "bits_per_byte": None, "accuracy": None}
    found = metrics(write(tmp_path, **none, diverged="the loss is nan at update 3"))
    assert found.eval == {} and found.extra["diverged"] == "the loss is nan at update 3"
    assert "eval metrics" not in str(found)


def test_a_run_that_is_not_finished_is_refused(tmp_path):
    refuses(r"holds no finished run; give one with a result\.json", metrics, tmp_path)
