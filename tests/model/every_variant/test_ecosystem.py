"""Our models in the hands of PEFT, TRL and lm-eval."""

import math

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layerlab.blocks.part import Part
from layerlab.model.modeling import LabForCausalLM
from tests.model.exempt import bound
from tests.model.small import SIZES, shaken, small, tokens

# PEFT and TRL still ask for gradient checkpointing by names that transformers calls old.
pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")

# A law per library, not per variant: one plain variant, and one with a carry across depth.
TRAINED = ("pangu-pi", "history-3")
WORDS = ("the", "cat", "saw", "a", "dog", "and", "it", "ran", ".")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Words of a tiny language; everything else is unknown."""
    vocabulary = {word: number for number, word in enumerate(("<pad>", "<end>", "<?>", *WORDS))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<?>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<?>"
    )


def parts(model: LabForCausalLM) -> set[str]:
    """Every matrix of a part that is a linear module, by its name."""
    return {
        f"{place}.{name}".strip(".")
        for place, module in model.named_modules()
        if isinstance(module, Part)
        for name, one in module.named_modules()
        if isinstance(one, torch.nn.Linear)
    }


@pytest.mark.parametrize("name", bound("adapters"))
def test_adapters_wrap_every_matrix_and_learn(name):
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer

    model, x = shaken(small(name, dtype=torch.float32)), tokens()
    matrices, before = parts(model), model(x, use_cache=False).logits.detach()
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    wrapped = {place for place, one in model.named_modules() if isinstance(one, LoraLayer)}
    assert wrapped == matrices
    assert torch.equal(adapted(input_ids=x, use_cache=False).logits, before)
    learning = [one for one in adapted.parameters() if one.requires_grad]
    frozen = {key: one.clone() for key, one in adapted.named_parameters() if not one.requires_grad}
    adapted.train()(input_ids=x, labels=x, use_cache=False).loss.backward()
    torch.optim.SGD(learning, lr=1.0).step()
    # The second matrix of an adapter starts at zero, so it is the one that moves first.
    moved = [
        key for key, one in adapted.named_parameters() if "lora_B" in key and not one.detach().any()
    ]
    assert moved == [] and learning
    for key, one in adapted.named_parameters():
        assert one.requires_grad or torch.equal(one, frozen[key])


@pytest.mark.full
@pytest.mark.parametrize("name", TRAINED)
def test_supervised_tuning_takes_a_step(name, tokenizer, tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model = small(name, dtype=torch.float32)
    before = {key: one.detach().clone() for key, one in model.named_parameters()}
    settings = SFTConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        max_length=16,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        gradient_checkpointing=True,
    )
    texts = Dataset.from_dict({"text": ["the cat saw a dog .", "the dog ran and the cat ran ."]})
    trainer = SFTTrainer(
        model=model, args=settings, train_dataset=texts, processing_class=tokenizer
    )
    loss = trainer.train().training_loss
    assert abs(loss - math.log(SIZES["vocab"])) < 0.5, "untrained: a guess among all tokens"
    assert all(one.isfinite().all() for one in model.parameters())
    moved = [key for key, one in model.named_parameters() if not torch.equal(one, before[key])]
    assert "model.layers.0.attention.query.weight" in moved


@pytest.mark.parametrize("name", TRAINED)
def test_the_harness_reads_the_likelihood_that_the_model_gives(name, tokenizer):
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = shaken(small(name, dtype=torch.float32)).requires_grad_(False)
    pairs = [("the cat saw", " a dog ."), ("it ran", " and ran"), ("a dog", " saw the cat and it")]
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, max_length=24)
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=number)
        for number, pair in enumerate(pairs)
    ]
    given = harness.loglikelihood(requests, disable_tqdm=True)
    for (context, rest), (likelihood, greedy) in zip(pairs, given, strict=True):
        x = torch.tensor([tokenizer(context + rest)["input_ids"]])
        start = len(tokenizer(context)["input_ids"])
        said = model(x).logits.log_softmax(-1)[0, start - 1 : -1]
        mine = said.gather(1, x[0, start:, None]).sum()
        # Rows are padded to one length there: the same sums in another order, in float32.
        tolerance = 64 * torch.finfo(torch.float32).eps * float(said.abs().max()) * len(said)
        assert abs(likelihood - float(mine)) < tolerance
        assert greedy == bool((said.argmax(-1) == x[0, start:]).all())
