"""Without a GPU: a run joins no tensors of its device with those of the processor."""

import pytest

from tests.support.forked import empty_python

CASES = {
    "plain": {},
    "muon": {"train.optimizer": "muon"},
    "mup": {
        "train.parametrization": "mup",
        "train.mup_base_width": 8,
        "train.mup_base_head_width": 8,
    },
    "micro": {"train.micro_batch_size": 2},
    "documents": {"data.document_masking": True},
    "emulated": {"emulate.format": "bf16"},
    "monitor": {"monitor.interval": 2},
    "clip": {"control.qk_clip": 0.01},
    "spectral": {"control.spectral_penalty": 0.1},
    "condition": {"control.condition_penalty": 0.1},
    "prompts": {"evaluate.prompts": ("a b",)},
    "eager": {"train.attn_implementation": "eager"},
}
VARIANTS = ["llama", "pangu-pi", "canon", "mhc", "hyper-connections", "attention-residuals"]


@pytest.mark.full
@pytest.mark.parametrize("case", [*CASES, *VARIANTS])
def test_a_run_learns_where_its_model_lies(case, tmp_path):
    done = empty_python("-m", "tests.support.train_on_pretend_device", tmp_path, case)
    assert done.returncode == 0, done.stderr[-2000:]
    begun, learned, *there = map(float, done.stdout.split()[-4:])
    assert begun - learned > 0.05 and there == pytest.approx([begun, learned], abs=3e-4)
