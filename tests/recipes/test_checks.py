"""What a run cannot do is refused when it is planned."""

from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.plan import plan
from layerlab.experiments.session import prepare
from layerlab.recipes.checks import refuse_single_arm, validate
from layerlab.recipes.training import make_recipe
from tests.support.forked import empty_python
from tests.support.refused import refuses

EXTENT = CorpusSize(vocab=300, tokens=10_000, digest="a")
SMALL = {"width": 32, "layers": 2, "heads": 2, "context": 16}
FLASH = {
    "train.attn_implementation": "flash_attention_2",
    "train.mixed_precision": "bf16",
    "run.device": "cuda",
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"train.batch_size": 3, "run.num_processes": 2},
            "2 processes cannot share evenly; write batch_size = 4",
        ),
        ({"run.sharding": "fsdp"}, "nothing can be shared out; write num_processes = 2"),
        (
            {"run.sharding": "fsdp", "run.num_processes": 2, "monitor.interval": 1},
            r"\[monitor\] reads whole weights, and run.sharding = \"fsdp\" leaves",
        ),
        (
            {"run.sharding": "fsdp", "run.num_processes": 2, "control.qk_clip": 9.0},
            r"\[control\] reads",
        ),
        (
            {"control.qk_clip": 9.0, "control.sigma_reparam": True},
            "control.qk_clip and control.sigma_reparam both set the size of .*; choose one",
        ),
        (
            {
                "control.qk_clip": 9.0,
                "train.attn_implementation": "flex_attention",
                "run.device": "cuda",
            },
            'is "flex_attention", of which control.qk_clip cannot see the scores; write attn',
        ),
        (
            {"run.sharding": "fsdp", "run.num_processes": 2, "train.optimizer": "muon"},
            'is "muon", which needs whole matrices, and run.sharding = "fsdp" leaves a part in '
            'each process; write optimizer = "adamw" or sharding = "none"',
        ),
        ({"run.sharding": "fsdp", "run.num_processes": 2, "emulate.format": "bf16"}, "emulate"),
        (
            {"emulate.format": "bf16", "train.mixed_precision": "bf16"},
            'train.mixed_precision is "bf16", and its own rounding would come on top of the '
            "emulated one",
        ),
        (
            {"emulate.format": "bf16", "train.mixed_precision": "fp16", "run.device": "cuda"},
            "is .fp16.",
        ),
        (
            {"emulate.format": "bf16", "train.torch_compile": True},
            "a compiled layer rounds inside cann",
        ),
        (
            {"emulate.format": "bf16", "run.num_processes": 2},
            "run.num_processes is 2: emulated gradients are not exchanged between processes; write "
            "num",
        ),
        ({"train.mixed_precision": "fp16"}, "which PyTorch trains in on GPUs alone"),
        (
            {"train.attn_implementation": "flex_attention"},
            "on a CPU: it has no backward pass on a CPU; wri",
        ),
        (
            {"train.attn_implementation": "flash_attention_2"},
            "cannot be had on a CPU: FlashAttention has no",
        ),
        (
            {**FLASH, "data.document_masking": True},
            'true, and "flash_attention_2" attends across documents; write attn_impl',
        ),
        (
            {**FLASH, "train.mixed_precision": "fp32"},
            'is "fp32", and "flash_attention_2" knows 16-bit numbers alone; write mixed',
        ),
        (
            {"run.device": "potato"},
            "'potato', which is no device; expected cpu, .* device = \"cpu\"",
        ),
        ({"run.device": "cuda:x"}, "'cuda:x', which is no device; .*: write device = \"cuda\""),
        (
            {"run.device": "cuda:1", "run.num_processes": 2},
            'run.device is "cuda:1", one device, for 2 processes; write device = "cuda"',
        ),
        ({"run.device": "cpu:0"}, "'cpu:0', which is no device; .*: write device = \"cpu\""),
        (
            {"train.warmup_steps": 4},
            "warmup_steps is 4, and the run has 4 updates, in all of which the rate",
        ),
        (
            {"train.warmup_steps": 4000},
            "write warmup_steps = 0.05, a share of the run, or a longer run",
        ),
        ({"train.warmup_steps": 0.9}, "train.warmup_steps is 0.9, and the run has 4 updates"),
    ],
)
def test_what_a_run_cannot_do_is_refused_by_its_plan(changes, said):
    recipe = make_recipe({"train": {"max_steps": 4, "batch_size": 4}, "model": SMALL})
    for good in (
        *({}, {"train.warmup_steps": 3}, {"run.num_processes": 2, "run.sharding": "fsdp"}),
        *({"run.device": "npu"}, {"run.device": "cuda:1"}, {"emulate.format": "bf16"}, FLASH),
        {
            "train.mixed_precision": "fp16",
            "train.attn_implementation": "flex_attention",
            "run.device": "cuda",
        },
    ):
        validate(recipe.change(good))
        plan(recipe.change(good), EXTENT)
    refuses(said, validate, recipe.change(changes))
    refuses(said, plan, recipe.change(changes), EXTENT)


def test_one_arm_is_trained_where_a_rate_or_a_size_or_a_score_is_asked_for():
    section = {"arms": ["llama"], "seeds": [1, 2, 3]}
    alone = make_recipe({"train": {"max_steps": 4}, "compare": section})
    refuses("compare.arms has 'llama' alone, which is held against none", refuse_single_arm, alone)
    # What is to be typed are variants.
    own = alone.change({"compare.arms": [{"name": "own", "variant": "gpt2"}]})
    refuses("has 'own' alone, .*: type --arms gpt2,llama, or write", refuse_single_arm, own)
    for asked in (
        {"compare.learning_rates": [1e-3, 1e-2]},
        {"ladder": {"count": 2}},
        {"compare.measures": ["suite:piqa"]},
        {"compare.arms": ["llama", "gpt2"]},
    ):
        refuse_single_arm(alone.change(asked))


def test_an_arm_is_refused_before_any_text_is_read(monkeypatch):
    rounded = {"name": "rounded", "set": {"emulate.format": "bf16"}}
    given = {
        "train": {"max_steps": 4, "mixed_precision": "bf16"},
        "model": SMALL,
        "compare": {"arms": ["llama", rounded]},
    }
    monkeypatch.setattr(
        "layerlab.experiments.session.prepare_corpus", lambda *_, **__: pytest.fail("it was read")
    )
    refuses("on top of the emulated one", prepare, given, Path("nowhere"), progress=False)


def test_an_arm_is_refused_too_and_by_the_length_that_its_tokens_come_to():
    section = {
        "arms": ["llama", {"variant": "gpt2", "set": {"train.warmup_steps": 2}}],
        "seeds": [1, 2],
    }
    train = {"tokens": 64, "batch_size": 2}
    with pytest.raises(UserError, match=r"train\.warmup_steps is 2, and the run has 2 updates"):
        plan(make_recipe({"train": train, "model": SMALL, "compare": section}), EXTENT)


def test_it_needs_no_torch():
    program = "import layerlab.recipes.checks, sys; sys.exit('torch' in sys.modules)"
    assert empty_python("-c", program).returncode == 0
