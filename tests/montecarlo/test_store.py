"""A run on disk: resumes, refuses, merges, and never uses a file silently."""

import hashlib
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.cli.sample import shard_range
from jaxsens.montecarlo import shards
from jaxsens.montecarlo.store import Run, merge_runs


def _init(key):
    return {"table": jax.random.normal(key, (16,), jnp.float32)}


def _apply(params, bits):
    row = bits @ (2 ** jnp.arange(3, -1, -1, dtype=jnp.int32))
    return params["table"][row]


# Cheap: what is tested here is the disk. One table in seventy is undecided.
MODEL = jaxsens.from_pair(_init, _apply, length=4, name="normal table")


def sample(out, models, **kw):
    return jaxsens.sample(MODEL, models=models, out=out, **({"chunk": 50, "batch": 50} | kw))


def contents(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def shard_names(run):
    return [p.name for p in shards.list_shards(run / "shards")]


def assert_same_run(a, b):
    (index_a, rows_a), (index_b, rows_b) = Run.open(a).arrays(), Run.open(b).arrays()
    np.testing.assert_array_equal(index_a, index_b)
    for name in rows_a._fields:
        np.testing.assert_array_equal(getattr(rows_a, name), getattr(rows_b, name), err_msg=name)
    assert Run.open(a).summary() == Run.open(b).summary()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run of 200 models; only to be read or copied."""
    path = tmp_path_factory.mktemp("store") / "whole"
    sample(path, 200)
    return path


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def test_files_of_a_run(whole):
    assert shard_names(whole) == ["0-50.npz", "50-100.npz", "100-150.npz", "150-200.npz"]
    assert sorted(p.name for p in whole.iterdir()) == ["manifest.json", "progress.json", "shards"]
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["config"]["seed"] == 0
    assert manifest["counts"]["models"] == 200
    assert manifest["counts"]["undecided"] == Run.open(whole).summary().undecided > 0
    assert {"jax", "jaxlib", "numpy", "jaxsens"} <= manifest["versions"].keys()
    assert json.loads((whole / "progress.json").read_text())["models"] == 200


def test_the_run_in_memory_is_the_run_on_disk(whole):
    kept = jaxsens.sample(MODEL, models=200, chunk=64, batch=10)
    index, rows = Run.open(whole).arrays()
    np.testing.assert_array_equal(index, kept.indices)
    for name in rows._fields:
        np.testing.assert_array_equal(getattr(rows, name), getattr(kept.models, name))
    assert Run.open(whole).summary() == kept.summary


def test_a_complete_run_computes_nothing(run, monkeypatch):
    before = contents(run / "shards")
    monkeypatch.setattr(jaxsens.montecarlo.sampler.evaluate, "evaluate_range", None)
    states = list(jaxsens.sample_iter(MODEL, models=200, out=run, chunk=50, batch=50))
    assert [(s.held, s.done, s.wanted) for s in states] == [(200, 0, 0)]
    assert contents(run / "shards") == before


def test_a_lost_shard_is_computed_again(run, whole):
    (run / "shards" / "50-100.npz").unlink()
    (run / "shards" / "150-200.npz").unlink()
    sample(run, 200)
    assert shard_names(run) == shard_names(whole)
    assert_same_run(run, whole)


def _truncate(folder, tmp_path):
    path = folder / "50-100.npz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def _empty(folder, tmp_path):
    path = folder / "50-100.npz"
    path.write_bytes(b"")
    return path


def _flip_a_byte(folder, tmp_path):
    path = folder / "50-100.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(bytes(data))
    return path


def _foreign(folder, tmp_path):
    sample(tmp_path / "other", 100, seed=1)
    path = folder / "50-100.npz"
    shutil.copy(tmp_path / "other" / "shards" / "50-100.npz", path)
    return path


def _renamed(folder, tmp_path):
    path = folder / "1000-1050.npz"
    (folder / "50-100.npz").rename(path)
    return path


def _not_a_name(folder, tmp_path):
    path = folder / "copy of 50-100.npz"
    shutil.copy(folder / "50-100.npz", path)
    return path


def _overlapping(folder, tmp_path):
    path = folder / "75-125.npz"
    shutil.copy(folder / "50-100.npz", path)
    return path


def _not_an_archive(folder, tmp_path):
    path = folder / "50-100.npz"
    with open(path, "wb") as file:
        np.save(file, np.arange(5))
    return path


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _empty,
        _flip_a_byte,
        _foreign,
        _renamed,
        _not_a_name,
        _overlapping,
        _not_an_archive,
    ],
)
def test_a_bad_shard_is_named_and_nothing_is_touched(run, tmp_path, damage):
    path = damage(run / "shards", tmp_path)
    before = contents(run)
    for use in (
        lambda: sample(run, 300),
        lambda: Run.open(run).summary(),
        lambda: Run.open(run).arrays(),
        lambda: merge_runs([str(run)], str(tmp_path / "merged")),
    ):
        with pytest.raises(jaxsens.ShardError) as caught:
            use()
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)
        assert contents(run) == before
    assert not (tmp_path / "merged").exists()


def test_a_removed_bad_shard_is_computed_again(run, whole, tmp_path):
    _truncate(run / "shards", tmp_path).unlink()
    sample(run, 200)
    assert_same_run(run, whole)


def test_temporary_files_are_no_shards(run, whole):
    left = run / "shards" / "200-250.npz.tmp-12345"
    left.write_bytes(b"half a shard")
    assert_same_run(run, whole)
    sample(run, 250)
    assert not left.exists()
    assert Run.open(run).summary().models == 250


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"config": {}, "config_hash": "0"}'])
def test_a_damaged_manifest_is_named(run, damage):
    (run / "manifest.json").write_text(damage)
    with pytest.raises(jaxsens.RunError, match=r"manifest\.json: damaged manifest"):
        sample(run, 200)


def test_shards_without_a_manifest_are_refused(run):
    (run / "manifest.json").unlink()
    with pytest.raises(jaxsens.RunError, match=r"holds shards but no manifest\.json"):
        sample(run, 200)
    assert not (run / "manifest.json").exists()


def test_extending_computes_only_what_is_missing(tmp_path, monkeypatch):
    run = tmp_path / "run"
    sample(run, 500)
    old = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in (run / "shards").iterdir()}
    computed = []
    evaluate = jaxsens.montecarlo.sampler.evaluate
    original = evaluate.evaluate_range

    def counted(model, seed, start, stop, *rest, **kw):
        computed.append((start, stop))
        return original(model, seed, start, stop, *rest, **kw)

    monkeypatch.setattr(evaluate, "evaluate_range", counted)
    result = sample(run, 900)
    assert result.summary.models == 900
    assert computed == [(a, a + 50) for a in range(500, 900, 50)]
    for name, (stamp, data) in old.items():
        path = run / "shards" / name
        assert (path.stat().st_mtime_ns, path.read_bytes()) == (stamp, data)
    sample(tmp_path / "direct", 900)
    assert_same_run(run, tmp_path / "direct")


def test_a_smaller_count_keeps_what_is_held(run):
    assert sample(run, 100).summary.models == 200


def test_execution_may_change(run, whole):
    sample(run, 230, chunk=7, batch=3, devices=2)
    sample(run, 260, chunk=64, batch=64, keep="sums")
    assert Run.open(run).summary().models == 260
    for shard in Run.open(run).shards():
        if shard.stop <= 200:
            assert shard.models is not None
    assert [a for a, _ in Run.open(run).ranges()][:6] == [0, 50, 100, 150, 200, 203]


@pytest.mark.parametrize(
    ("change", "field", "stored", "given_"),
    [
        ({"seed": 1}, "seed", "0", "1"),
        ({"tolerance": 1e-3}, "tolerance", "0.0005", "0.001"),
        ({"dtype": "float64"}, "dtype", "'float32'", "'float64'"),
    ],
)
def test_another_config_is_refused(run, change, field, stored, given_):
    before = contents(run)
    message = rf"^out: .* \({field}: the run holds {stored}, {given_} given\)$"
    with pytest.raises(jaxsens.RunError, match=message):
        sample(run, 300, **change)
    assert contents(run) == before


def test_another_law_or_length_is_refused(tmp_path):
    cfg = jaxsens.TransformerConfig(length=3, num_layers=1, d_model=2, num_heads=1, d_mlp=2)
    law = jaxsens.inits.uniform(10.0)
    jaxsens.sample(cfg, law, models=2, out=tmp_path / "run")
    for law_, cfg_, part in (
        (law.scaled("embedding", 2.0), cfg, "embedding"),
        (jaxsens.inits.uniform(9.0), cfg, "number: the run holds 10.0, 9.0 given"),
        (law, jaxsens.TransformerConfig(4, 1, 2, 1, 2), "length: the run holds 3, 4 given"),
    ):
        with pytest.raises(jaxsens.RunError, match=part):
            jaxsens.sample(cfg_, law_, models=2, out=tmp_path / "run")


def test_sums_equal_the_models(whole, tmp_path):
    result = sample(tmp_path / "sums", 200, keep="sums")
    assert result.summary == Run.open(whole).summary()
    kept, sums = Run.open(whole).notable(), result.run.notable()
    assert kept.keys() == sums.keys()
    for label in kept:
        np.testing.assert_array_equal(kept[label], sums[label])
    assert len(sums["undecided"]) == result.summary.undecided > 0
    with pytest.raises(jaxsens.RunError, match="keeps only sums for models 0-50"):
        result.run.arrays()


def test_merge_of_disjoint_runs_is_the_one_run(whole, tmp_path):
    parts = []
    for i in range(3):
        start, stop = shard_range(f"{i}/3", 200)
        parts.append(str(tmp_path / f"part{i}"))
        sample(parts[-1], stop - start, start=start)
    merged = merge_runs([parts[2], parts[0], parts[1]], str(tmp_path / "merged"))
    assert_same_run(merged.path, whole)
    assert merged.manifest["counts"]["models"] == 200


def test_shards_of_one_run_may_share_a_directory(whole, tmp_path):
    for i in (2, 0, 1):
        start, stop = shard_range(f"{i}/3", 200)
        sample(tmp_path / "run", stop - start, start=start)
    assert_same_run(tmp_path / "run", whole)


def test_merges_that_are_refused(run, whole, tmp_path):
    out = tmp_path / "merged"
    sample(tmp_path / "other", 50, seed=1, start=500)
    sample(tmp_path / "overlap", 20, start=190)
    for sources, message in (
        ([], "none given"),
        ([whole, tmp_path / "overlap"], "both hold model 190"),
        ([whole, whole], "both hold model 0"),
        ([whole, tmp_path / "other"], "seed: the run holds 0, 1 given"),
        ([whole, tmp_path / "nothing"], "holds no manifest"),
    ):
        with pytest.raises(jaxsens.RunError, match=message):
            merge_runs([str(s) for s in sources], str(out))
        assert not out.exists()
    before = contents(run)
    with pytest.raises(jaxsens.RunError, match="already holds model"):
        merge_runs([str(tmp_path / "overlap")], str(run))
    with pytest.raises(jaxsens.RunError, match="belongs to another run"):
        merge_runs([str(tmp_path / "other")], str(run))
    assert contents(run) == before


def test_a_second_writer_is_refused(run):
    states = jaxsens.sample_iter(MODEL, models=300, out=run, chunk=50, batch=50)
    next(states)
    before = contents(run)
    with pytest.raises(jaxsens.RunError, match="is being written by another process"):
        sample(run, 300)
    assert contents(run) == before
    assert [s.done for s in states] == [50, 100]
    assert sample(run, 300).summary.models == 300


def test_a_second_writer_of_an_overlapping_range_is_refused(run):
    with Run.open(run).writing(0, 500):
        left = run / "shards" / "450-500.npz.tmp-1"
        left.write_bytes(b"in flight")
        with (
            pytest.raises(jaxsens.RunError, match="is being written by another process"),
            Run.open(run).writing(400, 900),
        ):
            pass
        assert left.exists()
        with Run.open(run).writing(500, 900):
            pass
    with Run.open(run).writing(400, 900):
        pass
    assert not list(run.glob(".lock*"))


def test_a_lock_of_a_killed_writer_does_not_hold(run):
    (run / ".lock-0-300").touch()
    (run / ".lock-100-400").touch()
    assert sample(run, 300).summary.models == 300


def test_a_directory_that_cannot_be_made(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "run"):
        with pytest.raises(
            jaxsens.RunError, match="^out: .*must be a writable directory"
        ) as caught:
            sample(out, 10)
        assert "\n" not in str(caught.value)
    assert file.read_text() == "mine"


def test_a_run_that_is_none(tmp_path):
    with pytest.raises(jaxsens.RunError, match="holds no manifest"):
        Run.open(tmp_path)
    run = Run.create(tmp_path / "run", {"model": {"kind": "pair", "length": 4, "name": "x"}})
    assert run.summary().models == 0
    with pytest.raises(jaxsens.RunError, match="holds no models yet"):
        run.arrays()


def test_regenerating_a_model_of_ones_own(whole):
    run = Run.open(whole)
    with pytest.raises(jaxsens.RunError, match="pass it"):
        jaxsens.regenerate(run, 3)
    params = jaxsens.regenerate(run, 3, MODEL)
    np.testing.assert_array_equal(params["table"], _init(jaxsens.model_key(0, 3))["table"])
    assert run.arrays()[1].ones[3] == np.sum(np.asarray(params["table"]) > 0)
    other = jaxsens.from_pair(_init, _apply, length=4, name="another")
    with pytest.raises(jaxsens.RunError, match="holds another one"):
        jaxsens.regenerate(run, 3, other)
    with pytest.raises(ValueError, match="^index: -1 given"):
        jaxsens.regenerate(run, -1, MODEL)
