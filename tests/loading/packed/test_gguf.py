"""GGUF files: the numbers that their blocks stand for, unpacked once."""

import os
import resource
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import layerlab
from layerlab.loading.model import load_model
from tests.support.gguf_file import TOKENS, write_gguf
from tests.support.packed_folder import sizes, small_llama
from tests.support.refused import refuses

MEASURE = Path(__file__).resolve().parents[3] / "examples" / "own_measure.py"
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def model():
    return small_llama()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "BF16"])
def test_weights_are_the_numbers_of_their_blocks(model, kind, tmp_path):
    file = tmp_path / f"small-{kind}.gguf"
    kept = write_gguf(model, file, kind)
    found = load_model(str(file))
    read = found.model.state_dict()
    assert read.keys() == kept.keys() and found.name == file.name
    for name, weight in kept.items():
        assert torch.equal(read[name], torch.from_numpy(weight)), name
    model.load_state_dict({name: torch.from_numpy(one) for name, one in kept.items()})
    tokens = torch.arange(3, 23)[None]
    torch.testing.assert_close(found.model(tokens).logits, model(tokens).logits)
    letters = found.tokenizer.convert_ids_to_tokens(range(3, 3 + len(TOKENS)))
    assert letters == TOKENS


@pytest.mark.full
def test_a_file_is_unpacked_once_and_again_where_it_changes(model, tmp_path, cache, caplog):
    file = tmp_path / "small.gguf"
    write_gguf(model, file, "Q8_0")
    for _ in range(2):
        found = layerlab.inspect(file, weights=True, progress=False)
        assert set(found.frames["matrices"].layer) == {-1, 0, 1, 2}
    assert caplog.text.count("is unpacked once") == 1
    write_gguf(model, file, "Q4_0")
    layerlab.inspect(file, weights=True, progress=False)
    assert caplog.text.count("is unpacked once") == 2
    assert len(list(cache.glob("unpacked/small-*/config.json"))) == 2


@pytest.mark.parametrize("kept", [0, 3, 3000, -1000])
def test_a_file_that_is_cut_off_is_refused_and_leaves_nothing(model, kept, tmp_path, cache):
    file = tmp_path / "small.gguf"
    write_gguf(model, file, "Q8_0")
    file.write_bytes(file.read_bytes()[:kept])
    refuses("small.gguf is no GGUF model that transformers reads: ", load_model, str(file))
    assert not list(cache.glob("unpacked/*"))


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "small.gguf")
    refuses("small.gguf' is a pipe; expected a file", load_model, tmp_path / "small.gguf")


MIXTURE = [f"blk.{layer}.ffn_{one}.weight" for layer in (0, 1) for one in ("gate", "up", "down")]


@pytest.mark.parametrize(
    ("without", "change", "reason"),
    [
        (
            ["blk.1.ffn_down.weight"],
            None,
            "1 tensors of LlamaForCausalLM are not in it .first: model.lay",
        ),
        (MIXTURE, None, "6 tensors of LlamaForCausalLM are not in it"),
        (
            [],
            lambda writer: writer.add_tensor("blk.0.attn_q.bias", np.ones(64, np.float32)),
            "has no place for 1 of its tensors .first: blk.0.attn_q.bias",
        ),
        ([], lambda writer: writer.add_uint16("split.count", 2), "it is one of 2 parts"),
        ([], lambda writer: writer.add_rope_scaling_type(_Kind("ntk")), "scaled by 'ntk'"),
        (["token_embd.weight", "output.weight"], None, "are not in it"),
        (
            ["output_norm.weight"],
            lambda writer: writer.add_tensor("output_norm.weight", np.ones(32, np.float32)),
            "model.norm.weight is stored as .32,., and .64,. is asked for",
        ),
    ],
)
def test_a_file_that_is_not_the_whole_model_is_refused(model, without, change, reason, tmp_path):
    file = tmp_path / "small.gguf"
    write_gguf(model, file, "Q8_0", without=without, change=change)
    refuses(f"small.gguf is no GGUF model that transformers reads: .*{reason}", load_model, file)


class _Kind(str):
    value = property(str)


def array(length):
    """A file that says that its only field is an array of so many bytes."""
    name = b"general.architecture"
    head = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(name)) + name
    return head + struct.pack("<IIQ", 9, 0, length)


def test_a_claim_of_more_than_a_file_holds_costs_no_memory(model, tmp_path):
    file = tmp_path / "small.gguf"
    file.write_bytes(array(10**7))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refuses("it ends before what it says that it holds", load_model, file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    write_gguf(model, file, "Q8_0")
    content = file.read_bytes()
    for name, value in (("block_count", 10**6), ("feed_forward_length", 10**9)):
        at = content.index(f"llama.{name}".encode()) + len(f"llama.{name}") + 4
        file.write_bytes(content[:at] + struct.pack("<I", value) + content[at + 4 :])
        refuses("small.gguf is no .*: it (says|describes) 1?[0-9,]+ ", load_model, file)


ROPE = {"rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16}
BENT = {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize("rope", [{"rope_type": "linear", **ROPE}, {"rope_type": "yarn", **ROPE}])
def test_scaled_positions_are_read(rope, tmp_path):
    check_positions(rope, tmp_path / "small.gguf", scaled)


def test_frequencies_that_are_divided_one_by_one_are_read(tmp_path):
    def divide(writer):
        plain = 1e4 ** (-np.arange(0, 16, 2) / 16)
        found = LlamaForCausalLM(LlamaConfig(**sizes(), rope_parameters=dict(BENT)))
        factors = plain / found.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))

    check_positions(BENT, tmp_path / "small.gguf", lambda writer, rope: divide(writer))


def scaled(writer, rope):
    writer.add_rope_scaling_type(_Kind(rope["rope_type"]))
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def check_positions(rope, file, write):
    torch.manual_seed(0)
    config = LlamaConfig(**sizes(), rope_parameters=dict(rope), tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(8.0 if one.dim() > 1 else 1.0)
    write_gguf(model, file, "F32", change=lambda writer: write(writer, rope))
    tokens = torch.arange(3, 43)[None]
    with torch.no_grad():
        torch.testing.assert_close(load_model(file).model(tokens).logits, model(tokens).logits)


def test_a_file_without_a_tokenizer_is_a_model_without_one(model, tmp_path):
    write_gguf(model, tmp_path / "small.gguf", "Q8_0", without=["tokenizer"])
    assert load_model(tmp_path / "small.gguf").tokenizer is None


def test_what_memory_cannot_hold_is_refused_before_it_is_unpacked(model, tmp_path, monkeypatch):
    write_gguf(model, tmp_path / "small.gguf", "Q8_0")
    sizes = [one.numel() for one in model.parameters()]
    free = 4 * (sum(sizes) + 2 * max(sizes))  # two copies of the weight that is being read
    monkeypatch.setattr("layerlab.system.hardware.free_memory", lambda device: free - 1)
    refuses("does not fit into memory: .* GiB of weights", load_model, tmp_path / "small.gguf")
    monkeypatch.setattr("layerlab.system.hardware.free_memory", lambda device: free)
    load_model(tmp_path / "small.gguf")


@pytest.mark.full
def test_another_file_of_the_same_time_in_its_place_is_unpacked_anew(model, tmp_path):
    file, other = tmp_path / "small.gguf", tmp_path / "other.gguf"
    write_gguf(model, file, "Q8_0")
    before = load_model(file).model.lm_head.weight
    with torch.no_grad():
        model.lm_head.weight.neg_()
    write_gguf(model, other, "Q8_0")
    found = file.stat()
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert other.stat().st_size == found.st_size
    other.replace(file)
    assert torch.equal(load_model(file).model.lm_head.weight, -before)


@pytest.mark.full
def test_no_bars_of_others_are_shown(model, tmp_path, capfd):
    write_gguf(model, tmp_path / "small.gguf", "Q8_0")
    load_model(tmp_path / "small.gguf")
    assert "%" not in capfd.readouterr().err


@pytest.mark.full
def test_a_file_is_read_by_a_measure_of_ones_own(model, tmp_path):
    file, ids = tmp_path / "small.gguf", torch.arange(3, 43)[None]
    write_gguf(model, file, "Q8_0")
    found = layerlab.inspect(file, input_ids=ids, load=MEASURE, measures="focus", progress=False)
    assert len(found.frames["focus"])


def test_what_a_folder_holds_in_place_of_a_model_is_named(model, tmp_path):
    write_gguf(model, tmp_path / "small.gguf", "Q8_0")
    refuses("has no config.json; .*: type .*small.gguf", load_model, str(tmp_path))
    model.config.save_pretrained(tmp_path)
    refuses("has a config.json but no weights; .*: type .*small.gguf", load_model, str(tmp_path))
    (tmp_path / "__0_0.distcp").touch()
    refuses("has the parts of processes .*accelerate merge-weights", load_model, str(tmp_path))


def test_without_its_package_a_line_says_what_to_type(model, tmp_path, monkeypatch):
    file = tmp_path / "small.gguf"
    write_gguf(model, file, "Q8_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    from transformers import modeling_gguf_pytorch_utils as reader

    monkeypatch.setattr(reader, "is_gguf_available", lambda: False)
    refuses(r"package gguf, which is not installed.*pip install gguf", load_model, str(file))
