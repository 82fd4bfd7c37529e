import os
import time

import pytest

from layerlab.loading.packed.cache import unpack_once


@pytest.fixture
def cache(cache):
    return cache / "unpacked"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "Model-3.1-AWQ").mkdir()
    (tmp_path / "Model-3.1-AWQ" / "config.json").touch()
    return tmp_path / "Model-3.1-AWQ"


def fill(into):
    (into / "config.json").touch()


def test_a_folder_of_the_cache_has_the_whole_name_of_its_model(source, cache, caplog):
    found = unpack_once(source, source.iterdir(), fill)
    assert f"{source} is unpacked once, into {found}, which takes up to" in caplog.text
    assert found.parent == cache and found.name.startswith("Model-3.1-AWQ-")


@pytest.mark.parametrize("letter", ["m", "模"])
def test_a_long_name_is_cut(letter, source, cache):
    long = source.rename(source.with_name(letter * (255 // len(letter.encode()))))
    assert unpack_once(long, long.iterdir(), fill).is_dir()


def test_what_a_process_left_that_was_killed_goes(source, cache):
    whole = unpack_once(source, source.iterdir(), fill)
    left = whole.rename(whole.with_name(f".{whole.name}.0123abcd.partial"))
    other = cache / ".other-model.0123abcd.partial"
    other.mkdir()
    assert unpack_once(source, source.iterdir(), fill) == whole
    assert not left.exists() and other.exists()


def test_a_model_that_nobody_asked_for_within_a_month_makes_room(source, cache):
    files = [source / f"{number}.json" for number in range(4)]
    for file in files:
        file.touch()
    old, asked, late = (unpack_once(source, [file], fill) for file in files[:3])
    for folder, days in ((old, 30.5), (asked, 31), (late, 29.5)):
        then = time.time() - days * 24 * 3600
        os.utime(folder, (then, then))
    assert unpack_once(source, files[1:2], fill) == asked
    new = unpack_once(source, files[3:], fill)
    assert {asked, late, new} == {one for one in cache.iterdir() if one.is_dir()}
