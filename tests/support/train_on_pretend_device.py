"""Trains on the processor and on a fake accelerator, and prints losses: `FOLDER CASE`."""

import sys
from pathlib import Path

import torch
from accelerate.state import PartialState

from layerlab.training.accelerator import RunAccelerator
from layerlab.training.trainer import train_run
from tests.support.pretend_device import NAME, pretending
from tests.training.test_pretend_device import CASES
from tests.training.test_trainer import run_of

begin = RunAccelerator.__init__


def begin_there(self: RunAccelerator, *arguments: object) -> None:
    begin(self, *arguments)
    self.device = PartialState._shared_state["device"] = torch.device(NAME)


def main(folder: str, case: str) -> None:
    settings = CASES.get(case, {"model.variant": case})
    here = train_run(run_of(**settings), Path(folder) / "cpu")
    RunAccelerator.__init__ = begin_there
    with pretending():
        there = train_run(run_of(**settings), Path(folder) / NAME)
    print(here["step0_nats"], here["nats"], there["step0_nats"], there["nats"])


if __name__ == "__main__":
    main(*sys.argv[1:])
