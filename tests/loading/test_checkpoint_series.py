from layerlab.loading.checkpoint_series import expand_runs, step


def test_a_step_is_read_from_the_name_of_a_checkpoint():
    assert step("run/checkpoint-1500") == 1500
    assert step("run/checkpoint-20/") == 20
    assert step("gpt2") is None and step("checkpoint-final") is None


def test_a_run_folder_stands_for_its_checkpoints_in_order(tmp_path):
    for name in ("1000", "200", "30", "final"):
        folder = tmp_path / f"checkpoint-{name}"
        folder.mkdir()
        (folder / "config.json").touch()
    (tmp_path / "checkpoint-broken").mkdir()
    names = [tmp_path / f"checkpoint-{number}" for number in (30, 200, 1000)]
    assert expand_runs([str(tmp_path)]) == [str(name) for name in names]
    assert expand_runs([str(name) for name in reversed(names)]) == [str(name) for name in names]
    beside = expand_runs(["llama", str(tmp_path)])
    assert beside == ["llama", *(str(name) for name in names)], "whatever lists the folder"


def test_other_models_keep_their_order(tmp_path):
    assert expand_runs(["llama", "pre-norm", str(tmp_path)]) == ["llama", "pre-norm", str(tmp_path)]
    assert expand_runs(["checkpoint-9", "llama"]) == ["checkpoint-9", "llama"]


def test_the_first_checkpoint_is_before_all_others():
    assert expand_runs(["checkpoint-1", "checkpoint-0"]) == ["checkpoint-0", "checkpoint-1"]


def test_a_model_that_lies_beside_its_checkpoints_is_the_model(tmp_path):
    for folder in (tmp_path, tmp_path / "checkpoint-2"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").touch()
    assert expand_runs([str(tmp_path)]) == [str(tmp_path)]
