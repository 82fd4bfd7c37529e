"""torchtitan's trainer on a processor, which it does not know, and on a text of the test's.

The process has two arguments of its own, the text and the tokenizer, before those of torchtitan.
"""

import sys
from types import ModuleType
from typing import Any

import datasets
import torch
import torch.distributed


class Processor(ModuleType):
    """A processor as torchtitan asks for a device: one, with no memory to watch."""

    set_device = empty_cache = synchronize = reset_peak_memory_stats = staticmethod(lambda *_: None)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    get_device_name = staticmethod(lambda *_: "cpu")
    memory_stats = staticmethod(lambda *_: {})
    total_memory = 1 << 34

    def get_device_properties(self, *_: Any) -> Any:
        return self


def stand_in() -> None:
    """Make torchtitan compute on the processor; before anything else of it is imported."""
    from torchtitan.tools import utils

    utils.device_type, utils.device_module = "cpu", Processor("processor")
    if not hasattr(torch.distributed, "set_timeout"):  # since torch 2.14
        torch.distributed.set_timeout = lambda *_: None  # type: ignore[attr-defined]


def add_text(path: str) -> None:
    """Add a file of JSON lines to the texts that torchtitan knows."""
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS

    DATASETS["own"] = DatasetConfig(
        path=path,
        loader=lambda path: datasets.load_dataset("json", data_files=path, split="train"),
        sample_processor=lambda line: line["text"],
    )


if __name__ == "__main__":
    stand_in()
    add_text(sys.argv.pop(1))
    from torchtitan.train import main

    main()
