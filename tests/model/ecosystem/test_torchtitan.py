import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from layerlab.errors import UserError
from layerlab.model.build import build
from tests.support.forked import python
from tests.support.shell import ROOT
from tests.support.titan_on_cpu import add_text, stand_in

NAMES = "torchtitan", "triton"
pytestmark = [
    pytest.mark.skipif(
        not all(map(find_spec, NAMES)), reason="torchtitan is not installed; make torchtitan"
    ),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.full,
]
MODULE = "layerlab.model.ecosystem.torchtitan"
STEPS, CONTEXT, PROCESSES, ROWS = 5, 32, 2, 2
# Variants whose head is tied, whose layers share weights, and which look at where documents begin.
VARIANTS = {"pangu-pi": {"head": "tied"}, "widenet": {}, "canon": {}}
FROM_FILES = [
    "--checkpoint.enable",
    "--checkpoint.initial_load_in_hf",
    "--checkpoint.last_save_in_hf",
    "--checkpoint.last_save_model_only",
]

# One process, whose layers are recomputed and compiled: more than torch allows graphs of one code.
COMPILED = """
import sys
import torch
from torch import distributed
from tests.support.titan_on_cpu import stand_in
stand_in()
from torchtitan.config import CompileConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from layerlab.model.build import build
from layerlab.model.ecosystem.torchtitan import TitanModel, pretrain, shard_layers
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
sizes = {"width": 8, "layers": 9, "heads": 1, "vocab": 16, "context": 8}
build("denseformer", **sizes).save_pretrained(sys.argv[1])
parallelism = pretrain().parallelism
with torch.device("meta"):
    model = TitanModel.Config(folder=sys.argv[1]).build()
shard_layers(
    model,
    parallel_dims=ParallelDims.from_config(parallelism, 1),
    training=TrainingConfig(mixed_precision_param="float32"),
    parallelism=parallelism,
    compile_config=CompileConfig(enable=True, backend="aot_eager"),
    ac_config=SelectiveAC.Config(),
    dump_folder="",
)
model.to_empty(device="cpu").init_states()
tokens = torch.arange(8)[None]
model.train()(tokens).sum().backward()
plain = build("denseformer", **sizes).train()
plain(tokens).logits.sum().backward()
for found, one in zip(model.parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(found.grad.full_tensor(), one.grad)
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    lines = [f"{n} {'word ' * (n % 7)}and {n * n}" for n in range(300)]
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return path


def write_model(variant, folder, factor=1.0):
    """Write an untrained model, and a tokenizer of bytes; one weight is multiplied by a factor."""
    sizes = {"width": 32, "layers": 2, "heads": 2, "vocab": 258, "context": CONTEXT}
    model = build(variant, **sizes, **VARIANTS.get(variant, {}))
    with torch.no_grad():
        model.model.embed_tokens.weight *= factor
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = {letter: number for number, letter in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(names, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(ends))
    return model


def train_in_torchtitan(folder, text, out, *more):
    """Train in two processes; return the loss of each update."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(PROCESSES)),
        *("--standalone", "--local-ranks-filter", "0"),
        *("-m", "tests.support.titan_on_cpu", str(text)),
        *("--module", MODULE, "--config", "pretrain", "--hf_assets_path", str(folder)),
        *("--dataloader.dataset", "own", "--dump_folder", str(out)),
        *("--training.seq_len", str(CONTEXT), "--training.local_batch_size", str(ROWS)),
        *("--training.steps", str(STEPS), "--training.mixed_precision_param", "float32"),
        *("--lr_scheduler.warmup_steps", "0", "--lr_scheduler.decay_ratio", "0"),
        *("--metrics.log_freq", "1", "--metrics.disable_color_printing", *more),
    ]
    setting = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(out)}
    done = subprocess.run(
        command, cwd=ROOT, env=setting, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = dict(re.findall(r"step: +(\d+) +loss: +([0-9.]+)", done.stderr + done.stdout))
    return [float(found[str(step + 1)]) for step in range(STEPS)]


def read_rows(folder, text):
    """Return what both processes read at each update: tokens, labels and positions."""
    stand_in()
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataset

    add_text(str(text))
    tokenizer = HuggingFaceTokenizer.Config().build(tokenizer_path=str(folder))
    sets = [
        HuggingFaceTextDataset("own", None, tokenizer, CONTEXT, rank, PROCESSES, infinite=True)
        for rank in range(PROCESSES)
    ]
    readers = [iter(one) for one in sets]
    for _ in range(STEPS):
        rows = [row for reader in readers for row in islice(reader, ROWS)]
        yield (
            torch.stack([given["input"] for given, _ in rows]),
            torch.stack([labels for _, labels in rows]),
            torch.stack([given["positions"] for given, _ in rows]),
        )


def train_alone(model, batches):
    """Train in this process, by nothing but PyTorch; return the loss of each update."""
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=8e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    losses = []
    for tokens, labels, positions in batches:
        logits = model(tokens, position_ids=positions, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("variant", ["widenet", "canon"])
def test_a_model_drawn_in_torchtitan_learns_as_it_does_alone(variant, text, tmp_path):
    model = write_model(variant, tmp_path / "model")
    found = train_in_torchtitan(tmp_path / "model", text, tmp_path / "out")
    alone = train_alone(model, read_rows(tmp_path / "model", text))
    assert found == pytest.approx(alone, abs=1e-4)
    assert alone[-1] < alone[0] - 0.05


def test_a_model_goes_through_the_files_of_torchtitan(text, tmp_path):
    model = write_model("pangu-pi", tmp_path / "model", factor=3.0)
    out = tmp_path / "out"
    found = train_in_torchtitan(tmp_path / "model", text, out, *FROM_FILES)
    alone = train_alone(model, read_rows(tmp_path / "model", text))
    assert found == pytest.approx(alone, abs=1e-4)
    (saved,) = (out / "checkpoint").glob("step-*")
    (tmp_path / "model/model.safetensors").unlink()
    for path in saved.glob("*.safetensors*"):
        path.replace(tmp_path / "model" / path.name)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, atol=1e-4, rtol=0)


def test_each_of_many_layers_that_hand_on_more_than_the_stream_is_compiled(tmp_path):
    done = python("-c", COMPILED, str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr[-4000:]


def test_all_parameters_are_counted_whatever_the_length_of_a_row(tmp_path):
    model = write_model("gpt2", tmp_path)
    stand_in()
    from layerlab.model.ecosystem.torchtitan import TitanModel

    config = TitanModel.Config(folder=str(tmp_path))
    parameters, operations = config.get_nparams_and_flops(config.build(), CONTEXT // 2)
    assert parameters == model.num_parameters()
    assert operations < config.get_nparams_and_flops(config.build(), CONTEXT)[1]


def test_buffers_lie_where_the_model_computes_though_its_weights_do_not(tmp_path):
    write_model("canon", tmp_path)
    stand_in()
    from layerlab.model.ecosystem.torchtitan import TitanModel

    model = TitanModel.Config(folder=str(tmp_path)).build()
    model.init_states(buffer_device=torch.device("meta"))
    assert {held.device.type for held in model.buffers()} == {"meta"}
    assert {held.device.type for held in model.parameters()} == {"cpu"}


def refuse_folder(folder: Path, said: str) -> None:
    stand_in()
    from layerlab.model.ecosystem.torchtitan import pretrain

    wanted = pretrain()
    wanted.hf_assets_path = str(folder)
    with pytest.raises(UserError, match=said):
        wanted.model_spec.model.update_from_config(config=wanted)


@pytest.mark.parametrize("content", [None, "{}", '{"model_type": "llama"}'])
def test_a_folder_without_a_model_of_layerlab_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    refuse_folder(tmp_path, "where no model of layerlab lies; type --hf_assets_path")


def test_code_that_a_model_was_saved_with_is_asked_for_where_it_lies(tmp_path):
    write_model("canon", tmp_path)
    path, code = tmp_path / "config.json", tmp_path / "my_idea.py"
    code.write_text("PARTS = ()")
    path.write_text(json.dumps({**json.loads(path.read_text()), "files": {code.name: "0" * 64}}))
    refuse_folder(tmp_path, re.escape(f"in Python layerlab.load({str(code)!r})"))


@pytest.mark.parametrize(
    ("section", "name", "given", "told"),
    [
        ("training", "seq_len", 64, "--training.seq_len is 64, and the model has a context of 32"),
        ("parallelism", "tensor_parallel_degree", 2, "tensor_parallel_degree is 2; a model of"),
        ("parallelism", "pipeline_parallel_degree", 2, "pipeline_parallel_degree is 2; a model of"),
        ("parallelism", "spmd_backend", "spmd_types", "--parallelism.spmd_backend is spmd_types"),
    ],
)
def test_what_a_model_cannot_be_trained_by_is_refused(section, name, given, told, tmp_path):
    write_model("canon", tmp_path)
    stand_in()
    from layerlab.model.ecosystem.torchtitan import pretrain

    wanted = pretrain()
    settings = SimpleNamespace(
        hf_assets_path=str(tmp_path),
        training=replace(wanted.training, seq_len=CONTEXT),
        parallelism=wanted.parallelism,
    )
    setattr(settings, section, replace(getattr(settings, section), **{name: given}))
    with pytest.raises(UserError, match=told):
        wanted.model_spec.model.update_from_config(config=settings)
