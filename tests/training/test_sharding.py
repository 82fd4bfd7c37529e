"""Two processes, copying or sharing out the model, train like one, or say that they do not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from layerlab import UserError
from layerlab.corpus.corpus import extent, prepare
from layerlab.experiments.executors.local import run_one
from layerlab.experiments.executors.process import ranks
from layerlab.experiments.executors.slots import Slot
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import make_recipe
from layerlab.recipes.training_sections import RunSection
from layerlab.records.events import read
from layerlab.records.result import read_result
from layerlab.training.run_spec import RunSpec, read_run, write_run
from layerlab.training.sharding import check, gather_state, is_sharded, plugin
from tests.forked import Forked
from tests.training.test_worker import SMALL, WORDS

ROUNDING = 64 * 2.0**-23
WAYS = {"copies": "none", "parts": "fsdp"}
# Each way twice: without a stop, and with one after three updates.
PROGRAM = """
import os, sys
from pathlib import Path
import torch
from layerlab.system.hardware import peak_memory
from layerlab.training.sharding import is_sharded
from layerlab.training.trainer import Trainer
from layerlab.console.progress import NullProgress
from layerlab.training.run_spec import read_run

def begun(folder):
    run = read_run(folder)
    training = Trainer(run, folder, NullProgress())
    training.start()
    return training

for folder in sorted(Path(sys.argv[1]).glob("*-*")):
    training = begun(folder)
    assert is_sharded(training.model) == ("parts" in folder.name)
    while not training.done:
        training.advance()
        if training.update == 3 and "stopped" in folder.name:
            training.checkpoint()
            # So far the others might not have found what the first is still writing.
            torch.distributed.barrier()
            training = begun(folder)
            assert training.update == 3
    taken = training.finish()["peak_memory_bytes"]
    # Each process has taken as much as it says, and the run what both have.
    own = torch.tensor([peak_memory("cpu")], dtype=torch.float64)
    torch.distributed.all_reduce(own)
    assert 0.9 * float(own) < taken <= 1.1 * float(own) and taken > 1.5 * peak_memory("cpu")
torch.distributed.destroy_process_group()
"""


def made(text: Path, **settings: Any) -> RunSpec:
    """A run with a tied head, a learned position and an odd number of held-out blocks."""
    source = {"sources": [{"text": str(text)}], "vocab_size": 300}
    content = {
        **SMALL,
        "data": source,
        "model": {**SMALL["model"], "variant": "gpt2", "layers": 2},
        "evaluate": {
            "max_eval_blocks": 5,
            "batch_size": 1,
            "prompts": ["the cat"],
            "max_new_tokens": 4,
        },
        "run": {"save_steps": 100},
    }
    recipe = make_recipe(content).changed(settings)
    (found,) = plan(recipe, extent(prepare(recipe.data), 16))
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"{number} {WORDS}" for number in range(400)))
    return file


@pytest.fixture(scope="module")
def two(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made of a run, in all ways."""
    out = tmp_path_factory.mktemp("two")
    for way, sharding in WAYS.items():
        for how in ("whole", "stopped"):
            settings = {"run.num_processes": 2, "run.sharding": sharding}
            write_run(made(text, **settings), out / f"{way}-{how}")
    running = [
        Forked("-c", PROGRAM, out, env={**os.environ, **Slot(threads=1).environment(), **rank})
        for rank in ranks(2)
    ]
    for one in running:
        done = one.wait()
        assert done.returncode == 0, done.stderr[-4000:]
    return out


@pytest.fixture(scope="module")
def one(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one process."""
    folder = tmp_path_factory.mktemp("one")
    run_one(made(text), folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def course(folder: Path) -> list[dict[str, Any]]:
    return [event for event in read(folder) if event["kind"] == "train"]


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_train_like_one(way: str, two: Path, one: Path) -> None:
    ours, theirs = weights(one), weights(two / f"{way}-whole")
    assert ours.keys() == theirs.keys()
    # Sums in another order, six updates long; what a key's bias learns is nothing but rounding.
    for name, value in ours.items():
        gap = float((theirs[name] - value).norm())
        assert "key.bias" in name or gap <= ROUNDING * float(value.norm()), name
    for mine, other in zip(course(one), course(two / f"{way}-whole"), strict=True):
        assert mine["tokens"] == other["tokens"] and mine["rate"] == other["rate"]
        assert mine["loss"] == pytest.approx(other["loss"], rel=ROUNDING)
        assert mine["norm"] == pytest.approx(other["norm"], rel=ROUNDING)
    mine, other = read_result(one), read_result(two / f"{way}-whole")
    assert mine and other and mine["parameters"] == other["parameters"]
    assert mine["nats"] == pytest.approx(other["nats"], rel=ROUNDING)
    assert mine["step0_nats"] == pytest.approx(other["step0_nats"], rel=ROUNDING)


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_go_on_bit_for_bit(way: str, two: Path) -> None:
    whole, stopped = (read_result(two / f"{way}-{how}") for how in ("whole", "stopped"))
    assert whole and stopped
    assert stopped["weights"] == whole["weights"] and stopped["nats"] == whole["nats"]
    assert (whole["resumes"], stopped["resumes"]) == (0, 1)


@pytest.mark.full
def test_the_model_of_a_sharded_run_is_whole(two: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(two / "parts-whole" / "model")
    samples = [event for event in read(two / "parts-whole") if event["kind"] == "sample"]
    assert not is_sharded(model) and samples[-1]["text"]
    manifest = json.loads((two / "parts-whole" / "manifest.json").read_text())
    assert manifest["machine"]["processes"] == 2 and manifest["machine"]["sharding"] == "fsdp"
    assert read_run(two / "parts-whole").recipe.run.sharding == "fsdp"


def test_what_is_in_one_place_is_gathered_as_it_is() -> None:
    content = {"state": {0: {"step": torch.ones(())}}, "groups": [{"lr": 0.1, "params": [0]}]}
    assert gather_state(content) == content


def asked(**settings: Any) -> RunSection:
    return RunSection.model_validate(settings)


def test_a_run_that_is_not_what_was_asked_for_stops() -> None:
    accelerator = Accelerator(cpu=True)
    check(accelerator, asked())
    with pytest.raises(
        UserError, match=r"run.num_processes is 2 and this run was started as 1; write"
    ):
        check(accelerator, asked(num_processes=2))


class Told:
    """What accelerate says of itself, as on machines that are not here."""

    def __init__(self, processes: int, kind: Any) -> None:
        self.num_processes, self.distributed_type = processes, kind


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"num_processes": 2, "sharding": "fsdp", "device": "cuda"}, "MULTI_GPU"),
        ({"num_processes": 2, "device": "cuda"}, "FSDP"),
        ({"num_processes": 2}, "NO"),
        ({}, "FSDP"),
    ],
)
def test_another_way_to_share_the_work_is_refused(settings: dict[str, Any], kind: str) -> None:
    from accelerate.utils import DistributedType

    told: Any = Told(settings.get("num_processes", 1), DistributedType[kind])
    with pytest.raises(UserError, match="and accelerate set up"):
        getattr(check, "__wrapped__", check)(told, asked(**settings))


def test_accelerate_is_told_to_shard_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("FSDP", "ACCELERATE"))]:
        monkeypatch.delenv(name)
    assert plugin(asked(num_processes=2, sharding="fsdp")) is None
    assert plugin(asked(num_processes=2, device="cuda")) is None
    found = plugin(asked(num_processes=2, sharding="fsdp", device="cuda"))
    assert found is not None and found.fsdp_version == 2
    assert found.reshard_after_forward is True and found.cpu_ram_efficient_loading is False
