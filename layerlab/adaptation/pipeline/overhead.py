"""Overhead of a stage beside updates: files read, hashed and written, and trials."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file

from layerlab.adaptation.pipeline.amounts import StageAmount
from layerlab.adaptation.pipeline.dry_update import DryUpdate
from layerlab.adaptation.pipeline.update_time import UpdateTime
from layerlab.adaptation.trainer.arguments import step_counts
from layerlab.data.fingerprint import LARGE, fingerprint
from layerlab.loading.folders import input_files
from layerlab.recipes.adaptation_sections import SftSection, StepSection
from layerlab.records.file_digests import hash_file
from layerlab.system.write_errors import temporary_folder

TRIED, TURNS = 32 << 20, 3  # bytes of the files that are tried, and how many they are
# Passes over a few tokens before the first update: whether answers may share a pass, and whether
# packed ones are kept apart.
BATCHED, PACKED = 2, 6
# Seconds in which Trainer is built, collects its garbage, and rows or texts are looked through.
FIXED = 0.4
BEGUN = 0.1  # those in which a base's tokenizer is read, tried and kept


@dataclass(frozen=True, kw_only=True)
class FileRates:
    """Seconds of processor time that a byte takes here.

    Attributes:
        load: of weights, from a file.
        save: of weights, to a file.
        pack: of an optimizer's state, to a file.
        seal: hashed by SHA-256.
        know: hashed as inputs are.
    """

    load: float
    save: float
    pack: float
    seal: float
    know: float


@dataclass(frozen=True, kw_only=True)
class BaseFiles:
    """The files of a base.

    Attributes:
        weights: bytes of them.
        known: bytes that are hashed to tell them from others.
    """

    weights: int
    known: int


def measure_rates() -> FileRates:
    """Return what files of 32 MiB take here."""
    with temporary_folder() as folder:
        places = [Path(folder, f"{number}.safetensors") for number in range(TURNS)]
        packed = [Path(folder, f"{number}.pt") for number in range(TURNS)]
        weights = {"weights": torch.randn(TRIED // 4)}
        return FileRates(
            save=_time(lambda file: save_file(weights, file), places),
            load=_time(_load, places),
            pack=_time(lambda file: torch.save(weights, file), packed),
            seal=_time(hash_file, places),
            know=_time(fingerprint, places),
        )


def find_files(folder: Path) -> BaseFiles:
    """Return how large the files of a local base are."""
    sizes = [path.stat().st_size for path in input_files(folder)]
    return BaseFiles(weights=sum(sizes), known=sum(one for one in sizes if one < LARGE))


def base_seconds(files: BaseFiles, build: float, rates: FileRates) -> float:
    """Return the seconds in which a base is loaded once, looked at, and hashed.

    Args:
        build: seconds in which its model is put together.
    """
    return BEGUN + build + files.weights * (rates.load + rates.seal)


def stage_seconds(
    section: StepSection,
    amount: StageAmount,
    dry: DryUpdate,
    taken: UpdateTime,
    files: BaseFiles,
    rates: FileRates,
) -> float:
    """Return the seconds in which a stage loads, tries, keeps checkpoints and saves.

    Each checkpoint has the weights that learn and two moments of each, and is hashed; the model is
    saved once, hashed, and hashed again by what reads it.
    """
    weight_bytes = dry.weights
    seconds = FIXED + amount.encoding + dry.build
    seconds += files.weights * rates.load + weight_bytes * rates.seal
    if isinstance(section, SftSection):
        passes = PACKED * section.packing + BATCHED * bool(amount.held)
        seconds += files.known * rates.know + passes * taken.short
    if section.lora is not None:  # they are taken out again at the end
        seconds += dry.build + weight_bytes * rates.load
    every = section.save_steps or step_counts(amount.updates)["save_steps"]
    kept = dry.learned * rates.save + dry.moments * rates.pack
    kept += (dry.learned + dry.moments) * rates.seal
    return (
        seconds + ceil(amount.updates / every) * kept + weight_bytes * (rates.save + 2 * rates.seal)
    )


def _load(file: Path) -> None:
    """Load weights and copy them, as a model is filled."""
    for one in load_file(file).values():
        one.clone()


def _time(work: Callable[[Path], object], files: Sequence[Path]) -> float:
    """Return the seconds of a byte, in the middle of several turns, each with a file of its own."""
    times = []
    for file in files:
        begun = time.process_time()
        work(file)
        times.append(time.process_time() - begun)
    return median(times) / TRIED
