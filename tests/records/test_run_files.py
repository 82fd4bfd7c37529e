"""What is read from the folders of runs."""

import json

from layerlab.records.run_files import describe_single, gather_run_files
from tests.report.support.race import race, write_runs


def test_manifests_readings_and_words_of_every_run_are_gathered(tmp_path):
    content = race(("llama", "history-1"))
    write_runs(content, tmp_path)
    kept = {k: v for k, v in content.items() if k not in ("monitor", "manifests")}
    found = gather_run_files(kept, tmp_path)
    assert found["manifests"] == content["manifests"]
    assert found["monitor"] == content["monitor"]
    assert len(found["notes"]) == len(found["alarms"]) == len(content["runs"])
    assert found["alarms"][0] == {
        **{key: content["runs"][0][key] for key in ("run", "arm", "seed")},
        **{"update": 9, "text": "scores grow", "layer": 1},
    }
    assert found["rows"] == content["rows"]


def test_what_the_content_brings_is_kept_and_what_cannot_be_read_is_passed_over(tmp_path):
    content = race(("llama",), seeds=(1, 2))
    folders = write_runs(content, tmp_path)
    (folders[0] / "manifest.json").write_text("{")
    (folders[0] / "events.jsonl").write_bytes(b'\xff\n[1]\n{"kind":"note","text":"x"}\n')
    (folders[1] / "events.jsonl").unlink()
    kept = {k: v for k, v in content.items() if k != "manifests"}
    found = gather_run_files(kept, tmp_path)
    assert list(found["manifests"]) == [content["runs"][1]["run"]]
    assert found["monitor"] == content["monitor"]
    assert [note["text"] for note in found["notes"]] == ["x"]


def test_a_run_that_names_another_folder_is_not_followed_there(tmp_path):
    outside = tmp_path / "secret"
    outside.mkdir()
    (outside / "manifest.json").write_text('{"arm": "x"}')
    inside = tmp_path / "out"
    found = gather_run_files({"runs": [{"run": "../../secret"}, {"run": ".."}]}, inside)
    assert found["manifests"] == {}


def test_a_single_run_is_read_whether_it_has_finished_or_not(tmp_path):
    content = race(("llama",), seeds=(1,))
    (folder,) = write_runs(content, tmp_path)
    whole = describe_single(folder)
    assert whole["curves"][0]["train"] == content["curves"][0]["train"]
    assert whole["runs"][0]["finished"]
    assert whole["runs"][0]["nats"] == content["runs"][0]["nats"]
    (folder / "result.json").unlink()
    running = describe_single(folder)["runs"][0]
    assert not running["finished"]
    assert (running["seed"], running["rate"]) == (1, 0.003)
    (folder / "recipe.json").unlink()
    assert describe_single(folder)["name"] == content["runs"][0]["run"]
    named = {"name": "mine", "about": "Why."}
    (folder / "recipe.json").write_text(json.dumps(named))
    found = describe_single(folder)
    assert (found["name"], found["about"], found["recipe"]) == ("mine", "Why.", named)
