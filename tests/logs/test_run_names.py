"""What a path says of the arm and the seed of a run."""

from pathlib import Path

import pytest

from layerlab.logs.run_names import read_name


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("runs/pre-norm-s1/lightning_logs/version_0/metrics.csv", ("pre-norm", "1")),
        ("wide/seed_2/wandb/run-20260101_120000-ab12cd/files/output.log", ("wide", "2")),
        ("wide-s3/wandb/offline-run-20260101_120000-ab12cd/wandb-history.jsonl", ("wide", "3")),
        ("wide-s3/wandb/latest-run/files/output.log", ("wide", "3")),
        # Where nothing else names a run, the folders that are made for it do.
        ("lightning_logs/version_1/metrics.csv", ("version_1", None)),
        ("/lightning_logs/version_1/metrics.csv", ("version_1", None)),
        # A file is called by whoever wrote it.
        ("runs/version_2.csv", ("version_2", None)),
        ("runs/files/wide-s1.csv", ("wide", "1")),
    ],
)
def test_folders_that_trackers_make_are_no_names(path, named):
    assert read_name(Path(path)) == named
