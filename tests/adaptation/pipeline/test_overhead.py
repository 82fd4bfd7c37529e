"""What a stage takes beside its updates follows what it reads, hashes and writes."""

import os
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from layerlab.adaptation.pipeline.amounts import StageAmount
from layerlab.adaptation.pipeline.dry_update import dry_update
from layerlab.adaptation.pipeline.overhead import (
    BaseFiles,
    FileRates,
    find_files,
    measure_rates,
    stage_seconds,
)
from layerlab.adaptation.pipeline.update_time import UpdateTime
from layerlab.builtin import path
from layerlab.recipes.adaptation_sections import LoraSection, PretrainSection, SftSection

AMOUNT = StageAmount(tokens=4096, updates=10, row=64, readings=2, held=64.0, held_passes=1.0)
NOTHING = UpdateTime(seconds=0.0, forward=0.0, short=0.0, measured=True)
FILES = BaseFiles(weights=0, known=0)
RATES = FileRates(load=0.0, save=0.0, pack=0.0, seal=0.0, know=0.0)


def model() -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=500, **sizes, **heads))


def seconds(
    section: Any, amount: StageAmount = AMOUNT, files: BaseFiles = FILES, **rates: float
) -> float:
    """Those of files alone: what is there without them is taken off."""
    dry = replace(dry_update(model, section, 1, 16), build=0.0)
    given = partial(stage_seconds, section, amount, dry, NOTHING, files)
    return given(replace(RATES, **rates)) - given(RATES)


@pytest.mark.full
def test_every_checkpoint_has_weights_that_learn_and_their_moments():
    full = SftSection(save_steps=5)
    size = sum(one.nbytes for one in model().parameters())
    assert seconds(full, pack=1.0) == 2 * 2 * size
    assert seconds(full, save=1.0) == (2 + 1) * size
    # Hashed are the model that is read, both checkpoints, and what is saved twice.
    assert seconds(full, seal=1.0) == (1 + 2 * 3 + 2) * size
    base = BaseFiles(weights=7, known=3)
    assert (seconds(full, files=base, load=1.0), seconds(full, files=base, know=1.0)) == (7, 3)
    often = SftSection(save_steps=1)
    assert seconds(often, pack=1.0) == 10 * 2 * size
    adapters = SftSection(save_steps=1, lora=LoraSection(r=2))
    assert 0 < seconds(adapters, pack=1.0) < seconds(often, pack=1.0) / 5
    usual = PretrainSection(tokens=4096)
    assert seconds(usual, replace(AMOUNT, updates=1000), pack=1.0) == 10 * 2 * size


@pytest.mark.full
def test_passes_that_try_the_model_and_starts_are_counted():
    dry = replace(dry_update(model, SftSection(), 1, 16), build=0.0)
    short = replace(NOTHING, short=1.0)

    def count(section: Any, amount: StageAmount = AMOUNT) -> float:
        one, other = (
            stage_seconds(section, amount, dry, taken, FILES, RATES) for taken in (short, NOTHING)
        )
        return one - other

    assert count(SftSection()) == 8 and count(SftSection(packing=False)) == 2
    assert count(SftSection(), replace(AMOUNT, held=0.0)) == 6
    assert count(PretrainSection(tokens=4096)) == 0


@pytest.mark.full
def test_a_byte_takes_what_a_file_of_them_takes():
    found = measure_rates()
    assert all(1e-12 < one < 1e-6 for one in vars(found).values())


def test_files_of_a_base_are_those_that_a_loader_reads(tmp_path):
    found = find_files(path("llama"))
    weights = sum(one.stat().st_size for one in path("llama").glob("*.safetensors"))
    assert weights < found.weights == found.known < weights + (1 << 22)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    os.truncate(tmp_path / "model.safetensors", 2 << 30)
    assert find_files(tmp_path) == BaseFiles(weights=(2 << 30) + 2, known=2)


@pytest.mark.parametrize(("passes", "expected"), [(1.0, 10.0), (2.0, 2 * 10.0), (0.0, 0.0)])
def test_held_out_text_is_read_in_passes(passes, expected):
    taken = UpdateTime(seconds=0.0, forward=10.0, short=2.0, measured=True)
    assert taken.read(passes * 256, passes, 256) == pytest.approx(expected)
    assert taken.read(passes * 16, passes, 256) == pytest.approx(2.0 * passes)
