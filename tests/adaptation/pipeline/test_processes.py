"""Several processes of a recipe learn what one learns, and go on to the same bits after a kill."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import layerlab
from layerlab import UserError
from layerlab.adaptation.pipeline.processes import PROCESSES
from layerlab.adaptation.pipeline.stage import FILE
from layerlab.adaptation.pipeline.worker import REFUSED, TOLD
from layerlab.api.adapt import plan_adaptation
from layerlab.console.progress import NullProgress
from layerlab.experiments.executors.process import RunProcess
from layerlab.recipes.adaptation import make_recipe
from layerlab.records.file_digests import FILE as SEAL
from tests.adaptation.small import LAW, NATURE, words, written
from tests.support.forked import Forked, ForkedWorker

pytestmark = pytest.mark.full
PROGRAM = """
import json, sys
from pathlib import Path
import layerlab

if __name__ == "__main__":
    layerlab.adapt(json.loads(Path(sys.argv[1]).read_text()), out=sys.argv[2], progress=False)
"""
ROUNDING = 2.0**-14  # of float32, over a dozen updates


def saved(folder: Path) -> str:
    """A model that is not ours, in bfloat16, with its tokenizer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes, **heads))
    model.to(torch.bfloat16).save_pretrained(folder / "base")
    words().save_pretrained(folder / "base")
    return str(folder / "base")


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """What this process starts is forked, as what a forked one starts is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerlab.experiments.executors.process.Popen", ForkedWorker)
        yield


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    written(folder / "law.jsonl", LAW, 60, 1)
    written(folder / "nature.jsonl", NATURE, 90, 2)
    rows = [{"instruction": f"Is case {n} void?", "output": f"Case {n} is."} for n in range(12)]
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


def content(folder: Path, **changes: Any) -> dict[str, Any]:
    """All weights in float32 learn from text, adapters from rows, activations computed again."""
    step = {"batch_size": 4, "save_steps": 1, "learning_rate": 1e-2, "gradient_checkpointing": True}
    return {
        "base": {"model": saved(folder)},
        "data": {
            "domain": [{"text": str(folder / "law.jsonl")}],
            "general": [{"text": str(folder / "nature.jsonl")}],
            "validation_fraction": 0.2,
        },
        "pretrain": {"tokens": 384, "block_size": 16, **step},
        "sft": {
            "sources": [{"name": "questions", "path": str(folder / "rows.json")}],
            "num_train_epochs": 2,
            "block_size": 64,
            "lora": {"r": 2},
            **step,
        },
        **changes,
    }


def two(sharding: str) -> dict[str, Any]:
    return {"num_processes": 2, "sharding": sharding}


def weights(out: Path, kind: str) -> dict[str, torch.Tensor]:
    (file,) = out.glob(f"adaptation/stages/{kind}-*/model/model.safetensors")
    return load_file(file)


def gap(ours: Path, theirs: Path, kind: str) -> float:
    mine, other = weights(ours, kind), weights(theirs, kind)
    assert mine.keys() == other.keys()
    return max(float((mine[name] - other[name]).norm() / mine[name].norm()) for name in mine)


@pytest.fixture(scope="module")
def alone(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    layerlab.adapt(content(texts), out=out, progress=False)
    return out


@pytest.fixture(scope="module")
def together(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Two processes that were never stopped."""
    known: dict[str, Path] = {}

    def run(sharding: str) -> Path:
        if sharding not in known:
            known[sharding] = tmp_path_factory.mktemp(sharding)
            recipe = content(texts, run=two(sharding))
            layerlab.adapt(recipe, out=known[sharding], progress=False)
        return known[sharding]

    return run


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_processes_learn_what_one_learns(sharding, alone, together):
    found = together(sharding)
    base = load_file(next(alone.parents[0].glob("texts*/base/model.safetensors")))
    for kind in ("pretrain", "tune"):
        mine = weights(alone, kind)
        moved = max(float((mine[name] - base[name].float()).norm()) for name in mine)
        assert moved > 0.1 and gap(alone, found, kind) < ROUNDING


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_killed_they_go_on_to_the_same_bits(sharding, texts, tmp_path, together):
    """The one who started them is killed in both stages; its processes end with it.

    In between, checkpoints of copies of a model are not taken for parts of one.
    """
    recipe = content(texts, run=two(sharding))
    (tmp_path / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    kept: dict[str, int] = {}
    for kind in ("pretrain", "tune", None):
        running = Forked("-c", PROGRAM, tmp_path / "recipe.json", tmp_path / "out")
        told: dict[str, str] = {}
        whole = f"{kind}-*/checkpoint-*/{SEAL}" if kind else f"tune-*/{FILE}"
        until(
            lambda told=told, whole=whole: _listen(tmp_path, told) or any(_stages(tmp_path, whole))
        )
        if kind is None:
            assert running.wait().returncode == 0
        else:
            workers = psutil.Process(running.process.pid).children()
            running.kill()
            assert len(workers) == 2 and not any(_stages(tmp_path, f"{kind}-*/{FILE}"))
            until(lambda workers=workers: not any(map(_at_work, workers)))
        for one, last in kept.items():  # the first that each start tells is behind its checkpoint
            assert int(told[one].split()[1]) > last, told
        kept = {kind: _newest(tmp_path, whole)} if kind else {}
        for file in _told(tmp_path):
            file.unlink()
        if (sharding, kind) == ("none", "pretrain"):
            said = (
                r"pretrain-\w+ holds a run with another sharding \(None, not 'fsdp'\); name another"
            )
            with pytest.raises(UserError, match=said):
                layerlab.adapt({**recipe, "run": two("fsdp")}, out=tmp_path / "out", progress=False)
    for kind in ("pretrain", "tune"):
        assert gap(tmp_path / "out", together(sharding), kind) == 0.0


def test_one_that_is_killed_is_missed_in_plain_words(texts, tmp_path):
    recipe = content(texts, run=two("fsdp"))
    recipe["pretrain"]["tokens"] = 64_000
    (tmp_path / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    plan = plan_adaptation(recipe, tmp_path / "out")
    (key,) = (one.key for one in plan.stages if one.kind == "pretrain")
    (plan.out / PROCESSES / key).mkdir(parents=True)
    (plan.out / PROCESSES / key / REFUSED).write_text("said by an earlier call", "utf-8")
    running = Forked("-c", PROGRAM, tmp_path / "recipe.json", tmp_path / "out")
    until(lambda: any(_stages(tmp_path, f"pretrain-*/checkpoint-*/{SEAL}")))
    psutil.Process(running.process.pid).children()[1].kill()
    said = running.wait().stderr.splitlines()[-1]
    assert "ended with code -9 (another process has ended, or said nothing for too long)" in said


def test_what_a_process_cannot_do_is_said_in_its_words(texts, tmp_path):
    """A text that is known for too short when it is in tokens."""
    (tmp_path / "few.txt").write_text("The contract is void. " * 4, encoding="utf-8")
    recipe = content(texts, run=two("fsdp"))
    recipe["data"]["domain"] = [{"text": str(tmp_path / "few.txt")}]
    recipe["pretrain"]["block_size"] = 128
    with pytest.raises(
        UserError, match="tokens to train on, fewer than one block of 128"
    ) as refused:
        layerlab.adapt(recipe, out=tmp_path, progress=False)
    assert "\n" not in str(refused.value) and "ended with code" not in str(refused.value)
    assert list(tmp_path.glob(f"adaptation/{PROCESSES}/pretrain-*/log.txt"))


def test_who_is_interrupted_at_a_line_of_progress_leaves_no_process(texts, tmp_path, monkeypatch):
    class Kept(RunProcess):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            started.append(self)

    def tell(self: NullProgress, key: str, text: str, share: float) -> None:
        if key.startswith("pretrain"):
            raise KeyboardInterrupt

    started: list[RunProcess] = []
    monkeypatch.setattr("layerlab.adaptation.pipeline.processes.RunProcess", Kept)
    monkeypatch.setattr(NullProgress, "tell", tell)
    recipe = content(texts, run=two("fsdp"))
    recipe["pretrain"]["tokens"] = 6_400
    with pytest.raises(KeyboardInterrupt):
        layerlab.adapt(recipe, out=tmp_path, progress=False)
    try:
        assert started[0].code() == -signal.SIGKILL
    finally:
        started[0].kill()


def test_the_recipe_of_the_processes_is_that_of_the_stage(texts):
    read = make_recipe(content(texts, run=two("fsdp")))
    assert make_recipe(read.model_dump(mode="json", exclude_defaults=True)) == read


def until(done: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def _stages(folder: Path, pattern: str) -> Iterator[Path]:
    return folder.glob(f"out/*/stages/{pattern}")


def _newest(folder: Path, pattern: str) -> int:
    """Return the update of the newest whole checkpoint."""
    return max(int(one.parent.name.rpartition("-")[2]) for one in _stages(folder, pattern))


def _told(folder: Path) -> Iterator[Path]:
    return folder.glob(f"out/*/{PROCESSES}/*/{TOLD}")


def _listen(folder: Path, told: dict[str, str]) -> None:
    """Keep the first line that the processes of each stage say."""
    for file in _told(folder):
        if text := file.read_text("utf-8"):
            told.setdefault(file.parent.name.partition("-")[0], json.loads(text)[0])


def _at_work(process: psutil.Process) -> bool:
    """Whether it goes on; who has ended stays in the table until somebody asks for its code."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
