"""Two processes, copying or sharing out the model, train like one, or say that they do not."""

import json
import os
import shutil
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
from layerlab.experiments.executors.slots import RunSlot
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import make_recipe
from layerlab.recipes.training_sections import RunSection
from layerlab.records.checkpoint_names import WEIGHTS, list_parts
from layerlab.records.events import read
from layerlab.records.result import read_result
from layerlab.training.run_spec import RunSpec, read_run, write_run
from layerlab.training.sharding import check, gather_weights, is_sharded
from tests.support import mounted
from tests.support.forked import Forked
from tests.training.test_worker import SMALL, WORDS

ROUNDING = 64 * 2.0**-23
WAYS = {"copies": "none", "parts": "fsdp"}
# Each way twice: without a stop, and with one after three updates.
PROGRAM = """
import os, shutil, sys
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
            # Whichever of them ends first, the first has written what it leaves.
            assert (folder / "checkpoints" / "step-00000003").is_dir()
            if training.place.first:
                shutil.copytree(folder, folder.parent / "left" / folder.name)
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
# A checkpoint for which there is no room, and training after it.
FULL = """
import sys
from pathlib import Path
import torch
from layerlab.console.progress import NullProgress
from layerlab.training.run_spec import read_run
from layerlab.training.trainer import Trainer

folder = Path(sys.argv[1])
training = Trainer(read_run(folder), folder, NullProgress())
training.start()
training.advance()
training.advance()
training.checkpoint()
training.advance()
assert training.update == 3
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
# A number that is not finite, in the second of two processes.
DIVERGED = """
import sys
from pathlib import Path
import torch
from layerlab.console.progress import NullProgress
from layerlab.training.run_spec import read_run
from layerlab.training.step.nonfinite import Diverged
from layerlab.training.trainer import Trainer

folder = Path(sys.argv[1])
training = Trainer(read_run(folder), folder, NullProgress())
training.start()
if training.place.rank == 1:
    training.model.model.layers[1].ffn.register_forward_hook(lambda *given: given[-1] * torch.inf)
try:
    training.advance()
except Diverged:
    assert (folder / "result.json").exists()
    torch.distributed.destroy_process_group()
"""
# As on GPUs: accelerate scales no loss of float16 on CPUs.
HALF = """
import torch
from accelerate import Accelerator
from layerlab.model.build import build
from layerlab.recipes.training_sections import RunSection, TrainSection
from layerlab.training.optimizer import build_optimizer
from layerlab.training.sharding import full_tensor, is_sharded, wrap_model

accelerator = Accelerator(cpu=True, mixed_precision="fp16")
accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu")
settings = RunSection(num_processes=2, sharding="fsdp", device="cuda")
shape = {"width": 16, "layers": 2, "heads": 2, "vocab": 32, "context": 8, "sharing": "blocks"}
ids = torch.arange(32).view(4, 8)
whole = build("llama", **shape)
whole(ids, labels=ids).loss.backward()
expected = torch.nn.utils.get_total_norm([one.grad for one in whole.parameters()])
model = wrap_model(build("llama", **shape), accelerator, settings)
assert is_sharded(model)
optimizer = accelerator.prepare_optimizer(build_optimizer(model, TrainSection(max_steps=2)))
for spoilt in (False, True):
    before = [full_tensor(one.detach()).clone() for one in model.parameters()]
    optimizer.zero_grad()
    with accelerator.autocast():
        output = model(ids, labels=ids)
    assert output.logits.dtype == torch.float16
    accelerator.backward(output.loss)
    if spoilt and accelerator.process_index == 1:
        next(model.parameters()).grad.to_local().fill_(torch.inf)
    norm = full_tensor(accelerator.clip_grad_norm_(model.parameters(), 1e-3))
    assert spoilt or abs(norm / expected - 1) < 0.01, (norm, expected)
    gradients = [one.grad for one in model.parameters()]
    assert {one.dtype for one in gradients} == {torch.float32}
    assert spoilt or abs(full_tensor(torch.nn.utils.get_total_norm(gradients)) - 1e-3) < 1e-5
    optimizer.step()
    pairs = zip(before, model.parameters(), strict=True)
    assert all(torch.equal(old, full_tensor(one.detach())) == spoilt for old, one in pairs)
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
    recipe = make_recipe(content).change(settings)
    (found,) = plan(recipe, extent(prepare(recipe.data), 16))
    return found


def carry_out(program: str, place: Path) -> None:
    """Have two processes do it, to a good end."""
    settings = {**os.environ, **RunSlot(threads=1).environment()}
    for one in [Forked("-c", program, place, env={**settings, **rank}) for rank in ranks(2)]:
        done = one.wait()
        assert done.returncode == 0, done.stderr[-4000:]


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
    carry_out(PROGRAM, out)
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
def test_two_processes_train_like_one(way, two, one):
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
def test_two_processes_go_on_bit_for_bit(way, two):
    whole, stopped = (read_result(two / f"{way}-{how}") for how in ("whole", "stopped"))
    assert whole and stopped
    assert stopped["weights"] == whole["weights"] and stopped["nats"] == whole["nats"]
    assert (whole["resumes"], stopped["resumes"]) == (0, 1)


def resumed(left: Path, text: Path, folder: Path) -> dict[str, Any]:
    """What one process makes of what two have left."""
    shutil.copytree(left, folder)
    write_run(made(text), folder)
    return run_one(made(text), folder)


@pytest.mark.full
def test_each_process_writes_its_part_and_one_alone_reads_all(two, one, text, tmp_path):
    left = two / "left" / "parts-stopped"
    (checkpoint,) = (left / "checkpoints").iterdir()
    whole = sum(value.nbytes for value in weights(one).values())
    sizes = [sum(path.stat().st_size for path in list_parts(checkpoint, n)) for n in range(3)]
    # Weights and two moments of each, in halves; names and places take little.
    assert sizes[2] == 0 and abs(sizes[0] - sizes[1]) < 0.1 * whole
    assert 2.9 * whole < sizes[0] + sizes[1] < 3.1 * whole + 60_000
    assert (checkpoint / WEIGHTS).stat().st_size < 2000
    result = resumed(left, text, tmp_path / "run")
    assert result["resumes"] == 1
    for name, value in weights(one).items():
        gap = float((weights(tmp_path / "run")[name] - value).norm())
        assert "key.bias" in name or gap <= ROUNDING * float(value.norm()), name


@pytest.mark.full
def test_a_part_that_is_damaged_or_missing_is_not_believed(two, one, text, tmp_path):
    left = tmp_path / "left"
    shutil.copytree(two / "left" / "parts-stopped", left)
    (checkpoint,) = (left / "checkpoints").iterdir()
    (first, *_), (second, *_) = (list_parts(checkpoint, rank) for rank in range(2))
    content = bytearray(second.read_bytes())
    content[-1] ^= 1
    second.write_bytes(content)
    result = resumed(left, text, tmp_path / "damaged")
    assert result["resumes"] == 0 and result["weights"] == read_result(one)["weights"]
    (said,) = [event["text"] for event in read(tmp_path / "damaged") if event["kind"] == "note"]
    assert f"is damaged ({second.name} is not what was written); no other is left" in said
    first.unlink()
    resumed(left, text, tmp_path / "missing")
    assert f"({first.name} is missing)" in (tmp_path / "missing" / "events.jsonl").read_text()


@pytest.mark.full
def test_parts_that_find_no_room_are_told_and_training_goes_on(text, tmp_path):
    folder = tmp_path / "disk" / "parts-full"
    with mounted.disk(tmp_path / "disk", "150k"):
        write_run(made(text, **{"run.num_processes": 2, "run.sharding": "fsdp"}), folder)
        carry_out(FULL, folder)
        (said,) = [event["text"] for event in read(folder) if event["kind"] == "note"]
        assert said.startswith("no checkpoint of update 2 (") and "no space is left" in said
        assert not (folder / "checkpoints").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("none", "the first module whose output is not finite is model.layers.1.ffn"),
        ("fsdp", "in a sharded model its origin is not looked for"),
    ],
)
def test_a_number_that_is_not_finite_in_one_process_ends_both(way, said, text, tmp_path):
    write_run(made(text, **{"run.num_processes": 2, "run.sharding": way}), tmp_path)
    carry_out(DIVERGED, tmp_path)
    result = read_result(tmp_path)
    assert result and result["diverged"].startswith(f"loss is nan at update 0; {said}; lower")


@pytest.mark.full
def test_a_sharded_model_trains_in_float16_even_where_blocks_share_weights(tmp_path):
    carry_out(HALF, tmp_path)


@pytest.mark.full
def test_the_model_of_a_sharded_run_is_whole(two):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(two / "parts-whole" / "model")
    samples = [event for event in read(two / "parts-whole") if event["kind"] == "sample"]
    assert not is_sharded(model) and samples[-1]["text"]
    manifest = json.loads((two / "parts-whole" / "manifest.json").read_text())
    assert manifest["machine"]["processes"] == 2 and manifest["machine"]["sharding"] == "fsdp"
    assert read_run(two / "parts-whole").recipe.run.sharding == "fsdp"


def test_what_is_in_one_place_is_gathered_as_it_is():
    model = torch.nn.Linear(3, 2)
    gathered = gather_weights(model)
    assert gathered.keys() == model.state_dict().keys()
    assert all(
        gathered[name].data_ptr() == one.data_ptr() for name, one in model.named_parameters()
    )


def asked(**settings: Any) -> RunSection:
    return RunSection.model_validate(settings)


def test_a_run_that_is_not_what_was_asked_for_stops():
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
        ({"num_processes": 2, "sharding": "fsdp", "device": "cuda"}, "FSDP"),
        ({"num_processes": 2, "device": "cuda"}, "FSDP"),
        ({"num_processes": 2}, "NO"),
        ({}, "FSDP"),
    ],
)
def test_another_way_to_share_the_work_is_refused(settings, kind):
    from accelerate.utils import DistributedType

    told: Any = Told(settings.get("num_processes", 1), DistributedType[kind])
    with pytest.raises(UserError, match="and accelerate set up"):
        getattr(check, "__wrapped__", check)(told, asked(**settings))


def test_accelerate_copies_on_gpus_what_is_then_sharded():
    from accelerate.utils import DistributedType

    told: Any = Told(2, DistributedType.MULTI_GPU)
    for sharding in WAYS.values():
        settings = asked(num_processes=2, sharding=sharding, device="cuda")
        getattr(check, "__wrapped__", check)(told, settings)
