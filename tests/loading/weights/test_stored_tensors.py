import json
import os

import pytest
import torch
from safetensors.torch import save_file

from layerlab.loading.weights.stored_tensors import INDEX, list_files, read_outlines
from tests.support.refused import refuses

PLACES = {"a": "2.safetensors", "b": "1.safetensors"}


@pytest.fixture
def folder(tmp_path):
    for name, file in PLACES.items():
        save_file({name: torch.zeros(2, 3)}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": PLACES}))
    return tmp_path


def test_the_files_of_a_checkpoint_are_its_index_and_its_parts_in_order(folder):
    assert [one.name for one in list_files(folder)] == [INDEX, "1.safetensors", "2.safetensors"]
    assert {name: one.shape for name, one in read_outlines(folder).items()} == {
        "a": (2, 3),
        "b": (2, 3),
    }


def test_a_part_that_is_a_pipe_is_refused_and_not_waited_for(folder):
    (folder / "1.safetensors").unlink()
    os.mkfifo(folder / "1.safetensors")
    refuses("1.safetensors' is a pipe; expected a file", read_outlines, folder)
