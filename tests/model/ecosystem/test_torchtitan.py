import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from layerlab.errors import UserError
from layerlab.model.build import build
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


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    lines = [f"{n} {'word ' * (n % 7)}and {n * n}" for n in range(300)]
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return path


def write_model(variant, folder, factor=1.0):
    """Write an untrained model, and a tokenizer of bytes; one weight is multiplied by a factor."""
    sizes = {"width": 32, "layers": 2, "heads": 2, "vocab": 258, "context": CONTEXT}
    model = build(variant, **sizes, **VARIANTS[variant])
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


@pytest.mark.parametrize(
    ("section", "name", "given", "told"),
    [
        ("training", "seq_len", 64, "--training.seq_len is 64, and the model has a context of 32"),
        ("parallelism", "tensor_parallel_degree", 2, "tensor_parallel_degree is 2; a model of"),
        ("parallelism", "pipeline_parallel_degree", 2, "pipeline_parallel_degree is 2; a model of"),
        ("parallelism", "spmd_backend", "spmd_types", "spmd_backend is spmd_types; expected"),
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
