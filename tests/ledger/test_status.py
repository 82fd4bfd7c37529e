"""What a campaign says of itself: how many seeds a gain needs, and what a cut file holds."""

import pytest
from statsmodels.stats.power import TTestPower

import layerlab
from layerlab import UserError
from layerlab.ledger.campaign import SCREEN
from layerlab.ledger.chain import FILE
from layerlab.ledger.table import describe_trial
from tests.ledger.written_campaign import write_campaign
from tests.support.refused import refuses


def test_what_a_gain_of_one_deviation_needs_is_told(tmp_path):
    """Against the power that statsmodels gives a paired test of one side."""
    folder, power = tmp_path / "own", TTestPower()
    state = layerlab.create_ledger(folder, baseline="plain")
    for level, seeds in zip((SCREEN, state.next_level), state.needed_seeds, strict=True):
        assert seeds is not None
        found = [
            power.power(1.0, n, 2 * level, alternative="two-sided") for n in (seeds - 1, seeds)
        ]
        assert found[0] < 0.8 <= found[1]
    trial = layerlab.add_idea(folder, "wide", says="wider", seeds=[1, 2])
    assert "probability of 80 %; 6 find one of 1" in describe_trial(trial)
    trial = layerlab.add_idea(folder, "deep", says="deeper", seeds=range(1, 9))
    assert describe_trial(trial).endswith("probability of 80 %")


def test_a_ledger_that_was_cut_off_is_read_where_nothing_can_be_written(tmp_path):
    screened = write_campaign(tmp_path)
    with (screened / FILE).open("ab") as stream:
        stream.write(b'{"line":4,"bef')
    before = [one.stat().st_mtime_ns for one in (screened, screened.parent)]
    assert layerlab.read_ledger(screened).remark.startswith("the last line was cut off")
    assert [one.stat().st_mtime_ns for one in (screened, screened.parent)] == before


@pytest.mark.parametrize("name", ["wealth.svg", "levels.svg", "campaign.json", "report.html"])
def test_a_page_replaces_nothing_that_it_did_not_write(tmp_path, name):
    """Neither where it lies nor where a link leads, beside a page of ours or not."""
    ledger, out = write_campaign(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(UserError, match=f"other than the page of a campaign: {name}; move it away"):
        layerlab.read_ledger(ledger, out=out)
    assert [one.read_text() for one in out.iterdir()] == ["mine"]
    kept = (out / name).rename(tmp_path / "kept")
    (out / name).symlink_to(kept)
    refuses(rf"campaign: {name}; move it away", layerlab.read_ledger, ledger, out=out)
    (out / name).unlink()
    layerlab.read_ledger(ledger, out=out)
    layerlab.read_ledger(ledger, out=out)
    (out / name).replace(kept)
    (out / name).symlink_to(kept)
    before = kept.read_bytes()
    refuses(rf"{name} is a link to .* delete the link", layerlab.read_ledger, ledger, out=out)
    assert kept.read_bytes() == before
