"""One tree; file < environment < flags; a typo is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tlmd.data.config import Config, known_keys, load
from tlmd.data.config_file import RENAMED
from tlmd.data.errors import BadInput


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tlmd.toml"
    path.write_text("[tune]\ntrials = 3\n[pipeline]\nbatch = 2\n[measure]\nbuilders = 5\n")
    environment = {"TLMD_TUNE__TRIALS": "4", "TLMD_MEASURE__BUILDERS": "6", "TLMD_STATE_DIR": "x"}
    config = load(path, {"tune.trials": 7, "tune.seed": None}, environment)
    assert (config.tune.trials, config.pipeline.batch, config.measure.builders) == (7, 2, 6)
    assert load(None, None, {}) == Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tune]\ntrails = 3\n", ("tune.trails", "tune.trials")),
        ("[measur]\nx = 1\n", ("measur", "measure")),
        ("[tune]\ntrials = 0\n", ("tune.trials", "greater")),
        ("[tune]\ntrials = 'many'\n", ("tune.trials", "many")),
        ("tune = [\n", ("TOML",)),
    ],
)
def test_a_typo_is_one_clear_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "tlmd.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        load(path, None, {})
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    assert all(word in message for word in words), message


def test_a_missing_file_and_a_bad_variable() -> None:
    with pytest.raises(BadInput, match="nowhere"):
        load(Path("nowhere.toml"), None, {})
    with pytest.raises(BadInput, match="builder"):
        load(None, None, {"TLMD_MEASURE__BUILDER": "1"})


def test_keys_with_an_old_name_still_work(tmp_path: Path) -> None:
    path = tmp_path / "tlmd.toml"
    path.write_text("[measure]\nlend = false\n[generate]\nover = 4\nmost = 9\noversample_max = 7\n")
    config = load(path, None, {"TLMD_PIPELINE__TURN": "5"})
    assert not config.measure.build_on_run_cores and config.generate.oversample == 4
    assert config.generate.oversample_max == 7, "the new name wins"
    assert config.pipeline.per_task == 5
    assert set(RENAMED.values()) <= set(known_keys()) and not set(RENAMED) & set(known_keys())
