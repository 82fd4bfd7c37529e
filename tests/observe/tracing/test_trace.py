import copy
import math
import threading
from functools import partial

import pytest
import torch
from accelerate import disk_offload
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import anatomy, first_tensor, with_first
from layerlab.observe.tracing.trace import Trace, _Watcher, trace
from layerlab.records.layer_names import EMBEDDING

FAMILIES = ["gpt2", "openai-gpt", "llama"]
TOKENS = torch.arange(2, 30)


def traced(model, tokens=TOKENS, **options):
    layers = []
    found = trace(model, anatomy(model), [tokens], layers.append, **options)
    return layers, found


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_are_block_outputs_and_the_last_is_before_the_final_norm(tiny, family):
    model = tiny(family)
    layers, _ = traced(model)
    with torch.no_grad():
        states = model(input_ids=TOKENS[None], output_hidden_states=True).hidden_states
    assert [layer.layer for layer in layers] == [EMBEDDING, 0, 1]
    for layer, state in zip(layers[:2], states[:2], strict=True):
        assert torch.equal(layer.stream, state[0])
    same = torch.equal(layers[2].stream, states[2][0])
    assert same == (family == "openai-gpt"), "only GPT-1 has no norm behind the last block"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_stream_plus_branches_is_the_next_stream(tiny, family):
    for layer in traced(tiny(family))[0][1:]:
        total = layer.entered + sum(part.branch for part in layer.sublayers.values())
        error = 4 * torch.finfo(torch.float32).eps * layer.stream.abs().max()
        assert (total - layer.stream).abs().max() <= error


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_the_matrix_that_eager_attention_reports(tiny, family):
    model = tiny(family)
    layers, found = traced(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(input_ids=TOKENS[None], output_attentions=True).attentions
    assert not found.silent
    error = len(TOKENS) * torch.finfo(torch.float32).eps
    for layer, matrix in zip(layers[1:], expected, strict=True):
        assert (layer.attention.weights() - matrix[0]).abs().max() <= error


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_is_heard_in_other_dtypes_too(tiny, family, dtype):
    model = tiny(family).to(dtype)
    layers, found = traced(model)
    assert not found.silent and all(layer.attention is not None for layer in layers[1:])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_bit_identical_under_the_trace(tiny, family):
    model, seen = tiny(family), []
    with torch.no_grad():
        before = model(input_ids=TOKENS[None], use_cache=False).logits
    hook = model.register_forward_hook(lambda module, args, output: seen.append(output.logits))
    traced(model)
    hook.remove()
    assert torch.equal(seen[0], before)


def state(model):
    """All that a trace could leave behind."""
    hooks = [
        (len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()
    ]
    flags = [(p.requires_grad, p.grad is None) for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    entries = {name: id(entry) for name, entry in AttentionInterface().items()}
    return hooks, flags, modes, entries, copy.deepcopy(model.config.to_dict())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_restored_exactly_also_after_an_exception(tiny, family, fails):
    model = tiny(family)
    model.train()
    next(iter(model.parameters())).requires_grad_(False)
    before = state(model)

    def read(layer):
        assert not any(p.requires_grad for p in model.parameters()) and not model.training
        if fails and layer.layer == 1:
            raise RuntimeError("in the middle")

    run = partial(trace, model, anatomy(model), [TOKENS], read, gradient=True)
    if fails:
        with pytest.raises(RuntimeError, match="in the middle"):
            run()
    else:
        run()
    assert state(model) == before


def test_weights_that_are_brought_ask_for_gradients_as_before(tiny, tmp_path):
    """accelerate puts other parameters in their place."""
    model = tiny("llama")
    model.model.norm.requires_grad_(False)
    disk_offload(model, str(tmp_path), torch.device("cpu"))
    before = [one.requires_grad for one in model.parameters()]
    traced(model)
    assert [one.requires_grad for one in model.parameters()] == before
    assert before.count(False) == 1


def test_a_hook_of_the_users_is_not_lost(tiny):
    model, calls = tiny("llama"), []
    model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    traced(model)
    with torch.no_grad():
        model(input_ids=TOKENS[None])
    assert len(calls) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_next_token_loss(tiny, family):
    model = tiny(family)
    layers, found = traced(model, gradient=True)
    states = model(input_ids=TOKENS[None], output_hidden_states=True, labels=TOKENS[None])
    expected = torch.autograd.grad(states.loss, states.hidden_states[:2])
    assert found.loss_nats[0] == pytest.approx(states.loss.item(), rel=1e-5)
    for layer, gradient in zip(layers, expected, strict=False):
        error = 64 * torch.finfo(torch.float32).eps * gradient.abs().max()
        assert (layer.gradient - gradient[0]).abs().max() <= error


@pytest.mark.parametrize("family", FAMILIES)
def test_rerunning_a_block_gives_its_output_again(tiny, family):
    outputs = []

    def read(layer):
        if layer.rerun is not None:
            outputs.append((layer.rerun(layer.entered), layer.stream))

    model = tiny(family)
    trace(model, anatomy(model), [TOKENS], read)
    assert len(outputs) == 2
    assert all(torch.equal(again, stream) for again, stream in outputs)


def read(model):
    found = []

    def keep(layer):
        again = None if layer.rerun is None else layer.rerun(2 * layer.entered)
        found.extend([layer.stream, layer.entered, layer.gradient, again])

    trace(model, anatomy(model), [TOKENS], keep, gradient=True)
    return found


def test_a_block_is_what_hooks_of_the_users_make_of_it(tiny):
    hooked, changed = (tiny("llama").eval() for _ in range(2))
    hooked.model.layers[0].register_forward_pre_hook(lambda module, args: (3 * args[0], *args[1:]))
    hooked.model.layers[0].register_forward_hook(lambda module, args, output: 2 * output)
    block = changed.model.layers[0]
    own = block.forward
    block.forward = lambda stream, *args, **options: 2 * own(3 * stream, *args, **options)

    for one, other in zip(read(hooked), read(changed), strict=True):
        torch.testing.assert_close(one, other)


def test_two_sequences_read_like_each_alone(tiny):
    model, both = tiny("llama"), []
    pieces = [TOKENS, TOKENS.flip(0)[:9]]
    trace(model, anatomy(model), pieces, both.append)
    alone = traced(model, pieces[1])[0]
    for layer, other in zip(both[3:], alone, strict=True):
        assert layer.sequence == 1 and torch.equal(layer.stream, other.stream)


def share(model):
    """The same model with the attention and feed-forward of its first block in all blocks."""
    first, *others = model.model.layers
    for one in others:
        one.self_attn, one.mlp = first.self_attn, first.mlp
    return model


def test_modules_that_blocks_share_are_read_in_each_as_its_own(tiny):
    shared, apart = share(tiny("llama")), tiny("llama")
    apart.load_state_dict(shared.state_dict())
    (layers, found), (others, _) = traced(shared), traced(apart)
    assert not found.silent and [len(layer.sublayers) for layer in layers] == [0, 2, 2]
    for layer, other in zip(layers[1:], others[1:], strict=True):
        assert torch.equal(layer.attention.weights(), other.attention.weights())
        for name, part in layer.sublayers.items():
            assert torch.equal(part.branch, other.sublayers[name].branch)


def test_models_are_traced_in_two_threads(tiny):
    """The first would end while the second is inside, if that could begin."""
    models = [tiny("llama") for _ in range(2)]
    heard = [[], []]
    inside = [threading.Event() for _ in range(2)]

    def read(number, layer):
        heard[number].append(layer.attention is not None)
        if not inside[number].is_set():
            inside[number].set()
            if number == 0:
                inside[1].wait(1)
            else:
                threads[0].join()

    def run(number):
        trace(models[number], anatomy(models[number]), [TOKENS], partial(read, number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    threads[0].start()
    assert inside[0].wait(60)
    threads[1].start()
    for one in threads:
        one.join(60)
    assert heard[0] == heard[1] and sum(heard[0]) == models[0].config.num_hidden_layers


def test_an_attention_that_is_not_heard_is_named(tiny):
    model = tiny("llama")
    blocks = model.model.layers
    blocks[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    layers, found = traced(model)
    assert list(found.silent) == [1]
    assert "model.layers.1.self_attn (LlamaAttention) was heard 0 times" in found.silent[1]
    assert layers[2].attention is None and layers[1].attention is not None


def doubled(module, query, key, value, mask, scaling=None, **_):
    weights = torch.softmax(2 * query @ key.transpose(-1, -2) * scaling + mask, -1)
    return (weights @ value).transpose(1, 2), weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_is_not_a_softmax_of_qk_is_refused(tiny, monkeypatch, dtype):
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", doubled)
    model = tiny("llama", num_key_value_heads=4, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20 if parameter.dim() > 1 else 1)
    _, found = traced(model.to(dtype))
    assert "it is not plain attention" in found.silent[0]


def test_an_attention_of_the_users_is_heard_as_it_is(tiny):
    """In its place sdpa would give the streams of another model."""
    model = tiny("llama", num_key_value_heads=4)
    AttentionInterface.register("doubled", doubled)
    AttentionMaskInterface.register("doubled", eager_mask)
    try:
        model.set_attn_implementation("doubled")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(20 if parameter.dim() > 1 else 1)
            found = model(input_ids=TOKENS[None], output_hidden_states=True)
        layers, told = traced(model)
        assert all(torch.equal(layers[n].stream, found.hidden_states[n][0]) for n in (0, 1))
        loss = functional.cross_entropy(found.logits[0, :-1].double(), TOKENS[1:])
        assert told.loss_nats == [pytest.approx(float(loss), abs=1e-5)]
        assert "it is not plain attention" in told.silent[0]
        assert model.config._attn_implementation == "doubled"
    finally:
        AttentionInterface._global_mapping.pop("doubled")
        AttentionMaskInterface._global_mapping.pop("doubled")


def test_attention_is_checked_on_every_sequence(tiny):
    """One that is plain on a short text alone is refused on a longer one, and heard again after."""
    model = tiny("gpt2", attn_implementation="sdpa")
    plain = model.transformer.h[0].attn.forward

    def forward(hidden_states, *args, **options):
        if hidden_states.shape[1] < 8:
            return plain(hidden_states, *args, **options)
        plain(hidden_states, *args, **options)
        return plain(hidden_states, *args, **options)

    model.transformer.h[0].attn.forward = forward
    layers = []
    found = trace(model, anatomy(model), [TOKENS[:4], TOKENS, TOKENS[:4]], layers.append)
    heard = [layer.attention is not None for layer in layers if layer.layer == 0]
    assert len(TOKENS) >= 8 and heard == [True, False, True]
    assert list(found.silent) == [0]
    assert "attn (GPT2Attention) in sequence 1 was heard 2 times" in found.silent[0]


def test_what_is_plain_attention_on_the_first_sequence_alone_is_refused_behind_it(
    tiny, monkeypatch
):
    from transformers.models.llama import modeling_llama

    def sparse(module, query, key, value, mask, scaling=None, **_):
        scores = query @ key.transpose(-1, -2) * scaling + mask
        if key.shape[2] >= 8:  # keeps a few keys of each row, as sparse attention does
            scores = scores.masked_fill(scores < scores.topk(3, -1).values[..., -1:], -torch.inf)
        weights = torch.softmax(scores, -1)
        return (weights @ value).transpose(1, 2), weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", sparse)
    model = tiny("llama", num_key_value_heads=4, attn_implementation="eager")
    layers = []
    found = trace(model, anatomy(model), [TOKENS[:4], TOKENS], layers.append)
    heard = [layer.attention is not None for layer in layers if layer.layer == 0]
    assert heard == [True, False]
    assert "self_attn in sequence 1: softmax(q k) v differs from its output" in found.silent[0]


def test_a_stream_that_is_not_finite_is_reported_with_its_layer(tiny):
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.weight[0, 0] = torch.nan
    layers, found = traced(model)
    assert list(found.faults) == [1] and "of 448 features not finite" in found.faults[1]
    assert [layer.layer for layer in layers] == [EMBEDDING, 0]


def test_where_the_stream_has_another_shape_only_attention_is_handed_out(tiny):
    model = tiny("gpt2")
    model.transformer.drop.register_forward_hook(
        lambda module, args, output: output.transpose(0, 1)
    )
    layers, found = traced(model, gradient=True)
    assert "of shape (28, 1, 16), not batch x token x width" in found.no_stream
    assert [layer.attention.layer for layer in layers] == [0, 1]
    assert not any(layer.stream.numel() or layer.gradient is not None for layer in layers)


def test_a_stream_has_a_place_for_each_token_and_one_width(tiny):
    def fit(stream, *entered):
        watcher = _Watcher(anatomy(tiny("gpt2")), 0, TOKENS, print, {}, Trace())
        watcher.fit(torch.ones(stream), torch.ones(entered or stream))
        return str(watcher.found.no_stream)

    assert fit((1, 28, 16)) == "None" and "29 positions for 28 tokens" in fit((1, 29, 16))
    assert "16 channels on as 8" in fit((1, 28, 8), 1, 28, 16)


def test_a_block_that_drops_the_batch_axis_is_read_as_one_that_keeps_it(tiny):
    whole, cut = tiny("gpt2"), tiny("gpt2")
    cut.transformer.h[1].register_forward_hook(
        lambda module, args, output: with_first(output, first_tensor(output)[0])
    )
    for one, other in zip(read(whole), read(cut), strict=True):
        torch.testing.assert_close(one, other)


def test_logits_of_other_positions_than_the_tokens_have_no_loss_and_no_gradient(tiny):
    model = tiny("llama")

    def cut(module, args, output):
        output.logits = output.logits[:, 1:]
        return output

    model.register_forward_hook(cut)
    layers, found = traced(model, gradient=True)
    assert math.isnan(found.loss_nats[0]) and "no logits for every token" in found.no_gradient
    assert len(layers) == 3 and all(layer.gradient is None for layer in layers)


@pytest.mark.parametrize("block", [0, 1])
def test_blocks_that_run_twice_are_refused(tiny, block):
    model = tiny("gpt2")
    again = model.transformer.h[block]
    model.transformer.ln_f.register_forward_pre_hook(lambda module, args: (again(*args)[0],))
    with pytest.raises(NotApplicable, match="more than once in one forward"):
        traced(model)
