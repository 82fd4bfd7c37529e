"""The folder of a training that goes on: another model in it, and files of the user's own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from layerlab.adaptation.pretraining.replay import ReplayData
from layerlab.adaptation.pretraining.train import pretrain
from layerlab.adaptation.sft.train import tune
from layerlab.adaptation.trainer.beginning import describe_beginning
from layerlab.adaptation.trainer.own_folder import BEGUN, check_own
from layerlab.recipes.adaptation_sections import LoraSection, PretrainSection, SftSection
from layerlab.records.file_digests import seal_folder
from tests.adaptation.small import LAW, llama, words, written
from tests.adaptation.spoken import CHATML, speaker, talk
from tests.support.refused import refuses

HERE: dict[str, Any] = {"use_cpu": True, "save_steps": 1}
# PEFT asks transformers by a name that is on its way out.
pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")
ROWS = {"law": [talk(f"what is {number}?", "a number") for number in range(8)]}


def pretrained(out: Path, model: Any, tokenizer: Any = None) -> Any:
    text = out.parent / "law.jsonl"
    section = PretrainSection(tokens=64, batch_size=2, block_size=8, ratio=(1, 0))
    reading = ReplayData(
        domain=text if text.is_file() else written(text, LAW, 40, 1),
        general=None,
        validation=0.2,
        cache=out.parent / "cache",
    )
    return pretrain(model, tokenizer or words(), reading, section=section, out=out, **HERE)


def tuned(out: Path, model: Any, tokenizer: Any = None) -> Any:
    section = SftSection(
        batch_size=4, block_size=64, num_train_epochs=2, packing=False, lora=LoraSection(r=2)
    )
    return tune(model, tokenizer or speaker(), ROWS, section=section, out=out, **HERE)


STAGES: dict[str, Callable[..., Any]] = {"pretrain": pretrained, "tune": tuned}


@pytest.fixture(scope="module", params=list(STAGES))
def ended(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A finished run, and how it was called."""
    out = tmp_path_factory.mktemp(request.param) / "out"
    call = STAGES[request.param]
    call(out, llama())
    return out, call


@pytest.fixture
def run(ended: tuple[Path, Any], tmp_path: Path) -> tuple[Path, Any]:
    """A copy of the finished run, which a test may change."""
    shutil.copytree(ended[0].parent, tmp_path / "copy")
    return tmp_path / "copy" / "out", ended[1]


def files(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.mark.full
def test_the_same_model_is_told_again(run):
    out, call = run
    before = files(out)
    call(out, llama())
    assert files(out).keys() == before.keys()


@pytest.mark.full
def test_the_result_of_one_model_is_not_that_of_another(ended):
    out, call = ended
    before = files(out)
    assert (
        "\n"
        not in refuses(
            r"began with another model than this call; hand in", call, out, llama(seed=1)
        )
        and files(out) == before
    )
    other = llama()
    other.config.rms_norm_eps = 1e-3
    refuses("began with another configuration of the model than", call, out, other)


@pytest.mark.full
def test_another_tokenizer_is_another_run(ended):
    out, call = ended
    other = words() if call is pretrained else speaker()
    other.chat_template = CHATML + " "
    refuses("began with another tokenizer than this call; hand in", call, out, llama(), other)


def test_what_says_nothing_of_a_model_changes_no_beginning(tmp_path):
    one, tokenizer = llama(), speaker()
    before = describe_beginning(one, tokenizer)
    one.save_pretrained(tmp_path)
    tokenizer(["a", "a longer one"], padding=True, truncation=True, max_length=3)
    assert describe_beginning(type(one).from_pretrained(tmp_path), tokenizer) == before


@pytest.mark.parametrize(
    ("name", "begins_at_zero"), [("q_proj", "lora_B"), ("embed_tokens", "lora_embedding_A")]
)
def test_adapters_that_are_drawn_anew_are_the_same_beginning(name, begins_at_zero):
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=2, target_modules=[name])
    first = get_peft_model(llama(), lora)
    plain = llama()
    torch.manual_seed(1)
    second = get_peft_model(plain, lora)
    assert describe_beginning(first, words()) == describe_beginning(second, words())
    with torch.no_grad():
        for path, weight in second.named_parameters():
            if begins_at_zero in path:
                assert not weight.any()
                weight.fill_(1.0)
    assert describe_beginning(first, words()) != describe_beginning(second, words())


@pytest.mark.full
def test_a_run_of_an_earlier_version_goes_on(run):
    out, call = run
    plan = json.loads((out / "plan.json").read_text())
    assert set(plan.pop("beginning")) == {"model", "configuration of the model", "tokenizer"}
    (out / "plan.json").write_text(json.dumps(plan))
    refuses(r"checkpoint-\d is of another run, with another plan or b", call, out, llama())
    for one in out.glob("checkpoint-*"):
        seal_folder(one)
    call(out, llama())
    (out / "plan.json").write_text(json.dumps({**plan, "beginning": 3}))
    refuses("began with another model than this call", call, out, llama())


@pytest.mark.full
@pytest.mark.parametrize("call", STAGES.values(), ids=STAGES)
def test_a_checkpoint_that_was_being_written_is_written_anew(call, tmp_path, monkeypatch):
    def end(self: Any, folder: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "_save_optimizer_and_scheduler", end)
        call(tmp_path / "out", llama())
    assert [one.name for one in tmp_path.glob("out/checkpoint-*")] == ["checkpoint-1"]
    call(tmp_path / "out", llama())
    assert (tmp_path / "out" / "model").is_dir() and not (tmp_path / "out" / BEGUN).exists()


@pytest.mark.parametrize("name", ["model/my_base_model.txt", "checkpoint-3/mine.txt", "plan.txt"])
@pytest.mark.parametrize("call", STAGES.values(), ids=STAGES)
def test_files_of_the_user_are_not_deleted(call, name, tmp_path):
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("precious")
    before = files(tmp_path / "out")
    first = Path(name).parts[0]
    refuses(rf"holds {first} and no plan.json .* name a new or an", call, tmp_path / "out", llama())
    assert files(tmp_path / "out") == before


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["model/mine.txt", "checkpoint-1/mine.txt", "checkpoint-{}/mine"])
def test_nor_those_beside_what_an_earlier_call_wrote(run, name):
    out, call = run
    last = max(int(one.name.partition("-")[2]) for one in out.glob("checkpoint-*"))
    file = out / name.format(last)
    file.parent.mkdir(exist_ok=True)
    file.write_text("precious")
    before = files(out)
    refuses("was not written by an earlier call of this version, and", call, out, llama())
    assert files(out) == before


def test_nothing_is_replaced_through_a_link(run):
    out, call = run
    (out.parent / "mine").mkdir()
    shutil.rmtree(out / "model")
    (out / "model").symlink_to(out.parent / "mine")
    refuses("is a link to", call, out, llama())


def test_what_a_killed_process_left_is_its_own(tmp_path):
    (tmp_path / ".plan.json.0a1b2c3d.partial").write_text("{")
    check_own(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "optimizer.pt").write_bytes(b"half")
    refuses(r"checkpoint-4 was not written by an earlier call", check_own, tmp_path)
    (tmp_path / BEGUN).write_text("checkpoint-2\ncheckpoint-4\n")
    check_own(tmp_path)
    (tmp_path / "checkpoint-old").mkdir()
    (tmp_path / "checkpoint-old" / "mine.txt").write_text("never deleted")
    check_own(tmp_path)
    (tmp_path / "file").write_text("")
    refuses("file is a file; expected a folder: name a new one", check_own, tmp_path / "file")
