"""What three layers weigh, against sums by hand."""

from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.tables.fewer_layers import (
    accounting,
    judge_faster,
    judge_pays,
    read_per_token,
)

BLOCK = 4 * 4096**2 + 3 * 4096 * 11_008


def test_the_account_is_the_sum_by_hand():
    found = accounting()
    assert found["one block"] * 1e6 == BLOCK
    assert round(found["its vocabulary"] * 1e6) == 2 * 4096 * (100_883 - 32_000)
    assert round(found["its modules"] * 1e6) == 29 * (2 * 4096**2 // 32 + 4 * 11_008)


def test_a_layer_less_is_a_block_less_to_read():
    assert read_per_token(32, 32_000) - read_per_token(31, 32_000) == BLOCK


def test_modules_of_the_weight_of_three_blocks_would_pay_for_them():
    found = accounting()
    assert judge_pays(found | {"its modules": found["three blocks"]}).word == "holds"


def test_the_verdicts():
    found = study("fewer-layers", fast=True, progress=False)
    assert [one["word"] for one in found.verdicts] == ["fails", "holds", "not decided"]
    assert round(found.number, 2) == 0.16 and judge_faster().number == 43 / 47.6
