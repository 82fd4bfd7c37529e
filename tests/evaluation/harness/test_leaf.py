"""Answers that a task samples: the same for one seed, whatever was asked before."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from layerlab.errors import Interrupted
from layerlab.evaluation.harness.lm import HarnessModel
from tests.evaluation.lm_eval_tasks.own_tasks import WRITTEN, folder, run, write

__all__ = ["folder"]


def answers(out: Path, tasks: Any, **options: Any) -> list[str]:
    """The lines of all samples, asked from another state of the process each time."""
    torch.rand(())
    run(tasks, out=out, **{"batch_size": 2, **options})
    lines = [file.read_text("utf-8").splitlines() for file in (out / "samples").glob("drawn-*")]
    return [line for one in lines for line in one]


@pytest.mark.full
def test_sampled_answers_hang_on_the_seed_and_not_on_what_was_asked_before(
    folder, tmp_path, monkeypatch
):
    body = WRITTEN.replace("do_sample: false", "do_sample: true, temperature: 1.0")
    drawn = write(folder, "drawn", body, 5)
    whole = answers(tmp_path / "whole", drawn)
    before = [folder / "own_written.yaml", drawn]
    assert answers(tmp_path / "second", before, limit=5) == whole
    assert answers(tmp_path / "other", drawn, seed=1) != whole
    plain, passes = HarnessModel._model_generate, list[int]()

    def cut(self: Any, *args: Any, **options: Any) -> Any:
        passes.append(1)
        if len(passes) == 3:
            raise KeyboardInterrupt
        return plain(self, *args, **options)

    monkeypatch.setattr(HarnessModel, "_model_generate", cut)
    with pytest.raises(Interrupted):
        answers(tmp_path / "cut", drawn)
    assert answers(tmp_path / "cut", drawn) == whole
    both = answers(tmp_path / "cut", drawn, batch_size=1)
    assert len(both) == 2 * len(whole)  # other batches are other draws, and asked anew
