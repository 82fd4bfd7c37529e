"""Layouts of packed weights, against what the tools that wrote them read of them.

`packed_layers.safetensors` holds a few rows of one layer as GPTQModel 7.7, mlx-lm 0.32.2 and
ModelOpt 0.47 wrote them, each with what the tool's own unpacking gave.
"""

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from layerlab.loading.packed.layouts import LAYOUTS

WRITTEN = defaultdict(dict)
for name, held in load_file(Path(__file__).parent / "packed_layers.safetensors").items():
    WRITTEN[name.partition("/")[0]][name.partition("/")[2]] = held


def settings_of(case):
    tool, _, rest = case.partition("-")
    if tool == "mlx":
        _, group, mode = rest.split("-")
        return {"group_size": int(group), "mode": mode}
    return {"checkpoint_format": "gptq_v2" if "gptq_v2" in rest else "gptq"}


@pytest.mark.parametrize("case", sorted(WRITTEN))
def test_a_weight_is_what_its_own_tool_reads(case):
    layout, parts = LAYOUTS[case.partition("-")[0]], WRITTEN[case]
    held = {name: one for name, one in parts.items() if name in layout.parts}
    weight = layout.unpack(held, settings_of(case))
    assert layout.mark in held and held.keys() | layout.ranges | {"expected"} >= parts.keys()
    assert weight.shape == parts["expected"].shape
    assert torch.equal(weight.to(parts["expected"].dtype), parts["expected"])


@pytest.mark.parametrize("case", [one for one in sorted(WRITTEN) if one.startswith("mlx")])
def test_experts_lie_stacked_as_each_lies_alone(case):
    parts = {name: torch.stack([one, one.flip(0)]) for name, one in WRITTEN[case].items()}
    weight = LAYOUTS["mlx"].unpack(parts, settings_of(case))
    assert torch.equal(weight.to(parts["expected"].dtype), parts["expected"])


def test_groups_are_those_of_neighbours_where_nothing_says_otherwise():
    parts = dict(WRITTEN["gptq-4-0-1-gptq-32"])
    del parts["g_idx"]
    assert torch.equal(LAYOUTS["gptq"].unpack(parts, {}), parts["expected"])


@pytest.mark.parametrize("group", [128, 0])
def test_the_last_group_of_a_width_may_be_smaller(group):
    # AutoRound takes 128 and 64 of 192 inputs, and says nothing of each.
    parts = {
        "qweight": torch.zeros(24, 8, dtype=torch.int32),
        "qzeros": torch.full((2, 1), 0x77777777, dtype=torch.int32),
        "scales": torch.tensor([[0.5], [2.0]]).expand(2, 8),
    }
    if group:
        weight = LAYOUTS["gptq"].unpack(parts, {"group_size": group})
        assert weight[0].tolist() == [-4.0] * 128 + [-16.0] * 64
    else:
        with pytest.raises(ValueError, match="192 inputs lie in 2 groups"):
            LAYOUTS["gptq"].unpack(parts, {})


def test_a_row_of_any_width_may_be_one_group():
    parts = {
        "qweight": torch.zeros(12, 8, dtype=torch.int32),
        "qzeros": torch.full((1, 1), 0x77777777, dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5),
    }
    unpacked = LAYOUTS["gptq"].unpack(parts, {"group_size": -1})
    assert torch.equal(unpacked, torch.full((8, 96), -4.0))


def test_a_zero_of_zero_borrows_from_its_neighbours_where_one_less_is_stored():
    # GPTQModel takes 0x11111111 off a whole word: of the zeros 0, 5, 0 ... it leaves 0x...3F.
    zeros = [0, 5, 0, 7, 8, 9, 0, 15]
    word = sum(one << 4 * place for place, one in enumerate(zeros)) - 0x11111111
    parts = {
        "qweight": torch.full((1, 8), 0x33333333, dtype=torch.int32),
        "qzeros": torch.tensor([[word - (word >> 31 << 32)]], dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5),
    }
    expected = (3 - torch.tensor(zeros)[:, None].expand(8, 8)) * 0.5
    unpack = LAYOUTS["gptq"].unpack
    for name in ("gptq", "GPTQ"):
        assert torch.equal(unpack(parts, {"format": name}), expected)
    parts["qzeros"] = torch.full((1, 1), -1, dtype=torch.int32)
    assert torch.equal(unpack(parts, {"format": "gptq_v2"}), torch.full((8, 8), -6.0))
    assert torch.equal(unpack(parts, {"packing_format": "auto_round"}), torch.full((8, 8), -6.0))


@pytest.mark.parametrize(("name", "zero"), [("gptq", 0), ("gptq_v2", 7)])
def test_the_largest_zero_of_three_bits_is_one_of_zero_where_one_less_is_stored(name, zero):
    parts = {
        "qweight": torch.zeros(3, 32, dtype=torch.int32),
        "qzeros": torch.full((1, 3), -1, dtype=torch.int32),
        "scales": torch.full((1, 32), 0.5),
    }
    weight = LAYOUTS["gptq"].unpack(parts, {"format": name})
    assert torch.equal(weight, torch.full((32, 32), -0.5 * zero))


@pytest.mark.parametrize(
    ("scale", "factors"),
    [
        (torch.tensor(0.5), [[0.5, 0.5], [0.5, 0.5]]),
        (torch.tensor([0.5, 2.0]), [[0.5, 0.5], [2.0, 2.0]]),
        (torch.tensor([[0.5, 1.0], [2.0, 4.0]]), [[0.5, 1.0], [2.0, 4.0]]),
        (torch.tensor([[0.5, 1.0], [2.0, 4.0]]).reshape(2, 1, 2, 1), [[0.5, 1.0], [2.0, 4.0]]),
    ],
    ids=["all", "rows", "groups", "squares"],
)
def test_a_scale_is_that_of_all_of_a_row_or_of_a_block(scale, factors):
    rows, columns = (200, 250) if scale.dim() == 4 else (2, 64)
    edge = (128, 128) if scale.dim() == 4 else (1, 32)
    held = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    weight = LAYOUTS["modelopt"].unpack({"weight": held, "weight_scale": scale}, {})
    for row, column in ((0, 0), (0, columns - 1), (rows - 1, 0), (rows - 1, columns - 1)):
        factor = factors[row >= edge[0]][column >= edge[1]]
        assert weight[row, column] == held[row, column].float() * factor


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((4, 1, 4, 1), "its squares have other sides than 128"),
        ((2, 2), "256 rows have 2 rows of scales"),
        ((256, 3), "256 cannot be divided into 3"),
    ],
)
def test_blocks_of_unknown_sides_are_refused(shape, said):
    parts = {
        "weight": torch.zeros(256, 256).to(torch.float8_e4m3fn),
        "weight_scale": torch.ones(shape),
    }
    with pytest.raises(ValueError, match=said):
        LAYOUTS["modelopt"].unpack(parts, {})


def test_a_last_block_of_a_row_that_is_smaller_is_refused():
    parts = {"weight": torch.zeros(8, 48).to(torch.float8_e4m3fn), "weight_scale": torch.ones(8, 2)}
    with pytest.raises(ValueError, match="48 inputs lie in 2 groups"):
        LAYOUTS["modelopt"].unpack(parts, {})


def test_whole_numbers_of_four_bits_lie_in_pairs_of_rows_and_have_signs():
    numbers = torch.randint(-8, 8, (6, 64))
    held = ((numbers[0::2] & 15) | (numbers[1::2] & 15) << 4).to(torch.uint8)
    scale, inputs = torch.rand(6, 2) + 0.5, torch.rand(64) + 0.5
    parts = {"weight": held, "weight_scale": scale, "pre_quant_scale": inputs.bfloat16()}
    expected = numbers * scale.repeat_interleave(32, 1) * inputs.bfloat16().float()
    assert torch.equal(LAYOUTS["modelopt"].unpack(parts, {}), expected)


@pytest.mark.parametrize(
    ("case", "part"),
    [("awq-0-32", "scales"), ("mlx-4-64-affine", "weight"), ("modelopt-MXFP8", "weight_scale")],
)
def test_parts_of_sizes_that_do_not_fit_are_refused(case, part):
    layout, parts = LAYOUTS[case.partition("-")[0]], dict(WRITTEN[case])
    parts[part] = parts[part].T[:3].T if part != "scales" else parts[part][:3]
    with pytest.raises(ValueError, match="cannot be divided into"):
        layout.unpack(parts, settings_of(case))
