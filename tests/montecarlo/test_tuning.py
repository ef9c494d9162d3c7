"""Width and tile by measurement: what is chosen, kept and recalled; integers never change."""

import json

import numpy as np
import pytest

import jaxsens
from jaxsens import Tuning, inits
from jaxsens.montecarlo import tuning

CFG = jaxsens.TransformerConfig(length=4, num_layers=1, d_model=4, num_heads=1, d_mlp=8)
LAW = inits.uniform(3.0)


@pytest.fixture
def model():
    return jaxsens.transformer_model(CFG, LAW)


@pytest.fixture
def timed(monkeypatch):
    """Replaces the clock: seconds a model by (width, tile), 1 where not named; records calls."""
    seconds, calls = {}, []

    def measured(model, execution, candidates):
        calls.extend(candidates)
        return [seconds.get(tuple(candidate), 1.0) for candidate in candidates]

    monkeypatch.setattr(tuning, "_seconds_a_model", measured)
    return seconds, calls


def test_a_real_measurement_chooses_a_candidate(model, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_CALLS_PER_SECOND", 1 << 24)
    chosen = jaxsens.tune(model, devices=1, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    stored = json.loads(file.read_text())
    measured = [Tuning(m["width"], m["tile_bits"]) for m in stored["measured"]]
    assert chosen in measured
    assert all(m["microseconds_a_model"] > 0 for m in stored["measured"])
    assert {m.width for m in measured} == {1, 8}
    assert {m.tile_bits for m in measured} == {2, 3, 4}


def test_the_fastest_is_chosen_and_a_close_race_changes_nothing(model, timed):
    seconds, _ = timed
    default = tuning.default_tuning(model, 1)
    assert default == (8, 4)
    seconds[1, 4] = 0.97
    assert jaxsens.tune(model, devices=1) == default
    seconds[1, 4] = 0.5
    assert jaxsens.tune(model, devices=1) == (1, 4)
    seconds[1, 2] = 0.3
    assert jaxsens.tune(model, devices=1) == (1, 2)


def test_a_measurement_is_recalled_for_the_same_situation_alone(model, timed, tmp_path):
    seconds, calls = timed
    seconds[1, 4] = 0.5
    assert jaxsens.tune(model, devices=1, cache=tmp_path) == (1, 4)
    seconds.clear()
    calls.clear()
    # Another law has the same shapes.
    other_law = jaxsens.transformer_model(CFG, inits.normal(1.0))
    for same in (model, other_law):
        assert jaxsens.tune(same, devices=1, cache=tmp_path) == (1, 4)
    assert not calls
    assert jaxsens.tune(model, devices=2, cache=tmp_path) == (8, 4)
    wider = jaxsens.TransformerConfig(length=4, num_layers=1, d_model=8, num_heads=1, d_mlp=8)
    assert jaxsens.tune(jaxsens.transformer_model(wider, LAW), devices=1, cache=tmp_path) == (8, 4)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"width": 0, "tile_bits": 3}', '{"width": 1}'])
def test_a_spoilt_measurement_is_made_again(model, timed, tmp_path, text):
    jaxsens.tune(model, devices=1, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_text()
    file.write_text(text)
    timed[1].clear()
    assert jaxsens.tune(model, devices=1, cache=tmp_path) == (8, 4)
    assert timed[1]
    assert file.read_text() == good


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(model, timed, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert jaxsens.tune(model, devices=1, cache=tmp_path / "file" / "below") == (8, 4)
    assert (tmp_path / "file").read_text() == "in the way"


def test_the_cache_lies_in_the_users_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuning.cache_directory() == tmp_path / "jaxsens" / "tuning"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuning.cache_directory() == tmp_path / ".cache" / "jaxsens" / "tuning"


def test_only_long_runs_are_worth_a_measurement(model):
    assert not tuning.worth_measuring(model, 10_000)
    assert tuning.worth_measuring(model, 10**12)


@pytest.mark.parametrize("causal", [False, True])
def test_tuning_never_changes_integers(causal):
    cfg = jaxsens.TransformerConfig(
        length=5, num_layers=2, d_model=4, num_heads=2, d_mlp=8, causal=causal
    )
    results = [
        jaxsens.sample(cfg, LAW, models=24, devices=2, tuning=chosen).models
        for chosen in (None, Tuning(3, 2))
    ]
    for result in results[1:]:
        for name in ("profile", "ones", "fingerprint", "status"):
            np.testing.assert_array_equal(getattr(result, name), getattr(results[0], name))


def test_what_was_chosen_is_recorded(tmp_path):
    jaxsens.sample(CFG, LAW, models=8, devices=1, out=tmp_path / "run", tuning=Tuning(2, 3))
    execution = jaxsens.Run.open(tmp_path / "run").manifest["execution"]
    assert (execution["width"], execution["tile_bits"]) == (2, 3)


@pytest.mark.parametrize(
    "wrong", [Tuning(0, 3), Tuning(1, 0), Tuning(1, 2.5), (1, 3), Tuning(True)]
)  # pyright: ignore
def test_bad_tuning_is_refused(wrong):
    with pytest.raises(ValueError, match="given; it must be"):
        jaxsens.sample(CFG, LAW, models=8, tuning=wrong)


def test_an_evaluation_without_tiles_takes_none():
    cfg = jaxsens.TransformerConfig(
        length=4, num_layers=1, d_model=4, num_heads=1, d_mlp=8, positions="none"
    )
    model = jaxsens.transformer_model(cfg, LAW)
    assert model.tile_bits is None
    with pytest.raises(ValueError, match="tile_bits: 3 given; leave it out"):
        model.in_tiles(3)


def test_models_too_large_are_refused_before_they_are_timed(timed, monkeypatch):
    monkeypatch.setattr(tuning.memory, "bytes_available", lambda: 1000)
    with pytest.raises(ValueError, match="GiB"):
        jaxsens.tune(jaxsens.transformer_model(CFG, LAW), devices=1)
    assert not timed[1]
