"""The loss and its gradient beside transformers' own."""

import pytest
import torch
from transformers.loss.loss_utils import ForCausalLMLoss

import layerlab
from layerlab.errors import UserError
from layerlab.model.loss import causal_loss

VOCAB = 301
ROUNDING = torch.finfo(torch.float32).eps


def logits(seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(3, 70, VOCAB, generator=generator) * scale).requires_grad_()


def labels() -> torch.Tensor:
    found = torch.randint(0, VOCAB, (3, 70), generator=torch.Generator().manual_seed(1))
    found[0, :9] = -100
    return found


@pytest.mark.parametrize("scale", [0.1, 3.0, 60.0])
@pytest.mark.parametrize("count", [None, 17, torch.tensor(400)])
def test_value_and_gradient_are_those_of_transformers(scale, count):
    ours, theirs = logits(scale=scale), logits(scale=scale)
    found = causal_loss(ours, labels(), VOCAB, num_items_in_batch=count)
    exact = theirs.double()
    expected = ForCausalLMLoss(theirs, labels(), VOCAB, num_items_in_batch=count)
    found.backward()
    expected.backward()
    # transformers sums 200 terms in float32, each of the size of the largest logit
    bound = 200 * ROUNDING * exact.abs().max().item() * (200 / int(count or 200))
    assert abs(found.item() - expected.item()) <= bound
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=16 * ROUNDING)


def test_labels_that_are_shifted_already():
    shifted = torch.nn.functional.pad(labels(), (0, 1), value=-100)[:, 1:]
    found = causal_loss(logits(), labels(), VOCAB, shift_labels=shifted)
    assert found.item() == causal_loss(logits(), labels(), VOCAB).item()


@pytest.mark.parametrize("label", [-1, -101, VOCAB])
def test_a_label_that_is_no_token_is_refused(label):
    wrong = labels()
    wrong[1, 3] = label
    with pytest.raises(UserError, match=rf"a label is {label}; expected 0 to 300, or -100"):
        causal_loss(logits(), wrong, VOCAB)


@pytest.mark.parametrize("ignored", [-1, VOCAB + 4])
def test_the_label_without_a_loss_may_be_another(ignored):
    x, y = logits(), logits()
    other = labels().masked_fill(labels() == -100, ignored)
    found = causal_loss(x, other, VOCAB, ignore_index=ignored)
    expected = causal_loss(y, labels(), VOCAB)
    found.backward()
    expected.backward()
    assert torch.equal(found, expected) and torch.equal(x.grad, y.grad)


def test_backward_twice_gives_twice_the_gradient():
    x = logits()
    loss = 3 * causal_loss(x, labels(), VOCAB)
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * once, rtol=0, atol=0)
    plain = logits()
    loss = causal_loss(plain, labels(), VOCAB)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(plain.grad * 1.5, once, rtol=4 * ROUNDING, atol=0)


def test_an_impossible_label_costs_what_its_logit_says():
    x = torch.zeros(1, 2, VOCAB)
    x[0, 0, 5] = -300.0  # a probability that float32 cannot hold
    found = causal_loss(x.requires_grad_(), torch.tensor([[0, 5]]), VOCAB)
    expected = 300 + torch.tensor(VOCAB - 1.0).log().item()
    assert abs(found.item() - expected) <= 4 * ROUNDING * expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_other_precisions(dtype, scale):
    x = logits().detach().to(dtype).requires_grad_()
    y = logits().detach().to(dtype).double().requires_grad_()
    found, expected = causal_loss(x, labels(), VOCAB), causal_loss(y, labels(), VOCAB)
    (scale * found).backward()
    (scale * expected).backward()
    assert x.grad.dtype == dtype
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=64 * ROUNDING, atol=0)
    # Rounded once when it is kept and once when it is scaled, each by half of the last place.
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    torch.testing.assert_close(
        x.grad.double(), y.grad, rtol=torch.finfo(dtype).eps, atol=max(16 * ROUNDING, smallest)
    )


def test_float16_is_scaled_before_it_is_rounded():
    x = torch.zeros(1, 2, 8192, dtype=torch.float16).requires_grad_()
    loss = causal_loss(x, torch.zeros(1, 2, dtype=torch.long), 8192, num_items_in_batch=2**16)
    (loss * 2.0**16).backward()
    # 2^-13 of probability over 2^16 items is too small for this precision; the product is not.
    assert x.grad[0, 0, 1].item() == 2.0**-13


def test_second_derivatives_are_those_of_cross_entropy():
    direction = torch.linspace(-1, 1, 3 * 70 * VOCAB).view(3, 70, VOCAB)
    found = []
    for loss in (causal_loss, ForCausalLMLoss):
        x = logits()
        (slope,) = torch.autograd.grad(loss(x * x, labels(), VOCAB), x, create_graph=True)
        (twice,) = torch.autograd.grad((slope * direction).sum(), x)
        found.append(twice)
    assert found[1].abs().max() > 1e-4
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=64 * ROUNDING)


def test_function_transforms_reach_it():
    x = logits().detach()
    found = torch.func.grad(lambda y: causal_loss(y, labels(), VOCAB))(x)
    expected = torch.func.grad(lambda y: ForCausalLMLoss(y, labels(), VOCAB))(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=16 * ROUNDING)


def test_gradients_of_single_samples_are_those_of_single_runs():
    model = layerlab.build("llama", width=48, layers=2, heads=4, vocab=64, context=32).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(0, 64, (3, 8), generator=torch.Generator().manual_seed(0))
    parameters = {name: one.detach() for name, one in model.named_parameters()}

    def loss(given: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        options = {"labels": row[None], "use_cache": False}
        found: torch.Tensor = torch.func.functional_call(model, given, (row[None],), options).loss
        return found

    every = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, ids)
    for number, row in enumerate(ids):
        model.zero_grad()
        model(row[None], labels=row[None]).loss.backward()
        for name, one in model.named_parameters():
            torch.testing.assert_close(every[name][number], one.grad, rtol=1e-4, atol=1e-6)
