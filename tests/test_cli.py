"""The command line: one line per mistake, and runs that survive being killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import jaxsens
from jaxsens import cli, report
from jaxsens.montecarlo import shards

SHAPE = ["--length", "3", "--num-layers", "1", "--d-model", "4", "--num-heads", "1", "--d-mlp", "4"]
# The devices of this process are fixed by now; --cpu-devices must ask for the same number.
BASE = ["sample", *SHAPE, "--cpu-devices", "4"]


@pytest.fixture(autouse=True)
def _keep_sigterm():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def jaxsens_main(capsys):
    """Runs one command in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def run_of_20(tmp_path_factory):
    """A finished run; only to be read."""
    path = tmp_path_factory.mktemp("cli") / "run"
    with pytest.raises(SystemExit) as stop:
        cli.main([*BASE, "--models", "20", "--chunk", "8", "--batch", "8", "--out", str(path)])
    assert stop.value.code == 0
    return path


def contents(run):
    found = {}
    for path in shards.list_shards(run / "shards"):
        with np.load(path) as file:
            found[path.name] = {name: file[name] for name in file.files if name != "smallest_logit"}
    return found


def assert_same_contents(a, b):
    a, b = contents(a), contents(b)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].keys() == b[name].keys()
        for array in a[name]:
            np.testing.assert_array_equal(a[name][array], b[name][array], err_msg=name)


def assert_one_line(result, *parts):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert err.startswith("jaxsens: ")
    assert "Traceback" not in err
    for part in parts:
        assert part.lower() in err.lower(), err


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--length", "0"], ["length", "0"]),
        (["--length", "31"], ["length", "31"]),
        (["--length", "3.5"], ["length", "3.5"]),
        (["--models", "-3"], ["models", "-3"]),
        (["--models", "0"], ["models", "0"]),
        (["--models", "abc"], ["models", "abc"]),
        (["--d-model", "9", "--num-heads", "2"], ["d_model", "9", "2"]),
        (["--num-heads", "0"], ["heads", "0"]),
        (["--eps", "-1"], ["eps", "-1"]),
        (["--eps", "nan"], ["eps", "nan"]),
        (["--norm", "batch"], ["norm", "batch"]),
        (["--scale", "nan"], ["scale", "nan"]),
        (["--scale", "-1"], ["scale", "-1"]),
        (["--scale", "inf"], ["scale", "inf"]),
        (["--init", "nosuch"], ["init", "nosuch", "uniform"]),
        (["--seed", "4294967296"], ["seed", "4294967296"]),
        (["--seed", "-1"], ["seed", "-1"]),
        (["--group-law", "nonsense"], ["group-law", "nonsense"]),
        (["--group-law", "nosuch=zeros"], ["nosuch", "embedding"]),
        (["--group-law", "biases=nosuch"], ["nosuch"]),
        (["--group-law", "biases=normal:x"], ["group-law", "x"]),
        (["--group-scale", "embedding"], ["group-scale", "embedding"]),
        (["--group-scale", "embedding=-2"], ["embedding", "-2"]),
        (["--shard", "5/4"], ["shard", "5/4"]),
        (["--shard", "1"], ["shard", "'1'"]),
        (["--tolerance", "nan"], ["tolerance", "nan"]),
        (["--width", "0"], ["width", "0"]),
        (["--tile-bits", "0"], ["tile_bits", "0"]),
        (["--tile-bits", "2.5"], ["tile-bits", "2.5"]),
        (["--tune", "often"], ["tune", "often", "never"]),
        (["--tolerance", "2"], ["tolerance", "2"]),
        (["--dtype", "float16"], ["dtype", "float16"]),
        (["--keep", "all"], ["keep", "all"]),
        (["--chunk", "0"], ["chunk", "0"]),
        (["--batch", "-1"], ["batch", "-1"]),
        (["--devices", "99"], ["devices", "99"]),
        (["--cpu-devices", "0"], ["cpu-devices", "0"]),
        (["--nosuch", "1"], ["nosuch"]),
    ],
)
def test_bad_flags_of_sample(jaxsens_main, tmp_path, flags, parts):
    out = tmp_path / "run"
    assert_one_line(jaxsens_main(*BASE, "--models", "4", "--out", out, *flags), *parts)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([*BASE, "--models", "4"], ["--out"]),
        ([*BASE, "--out", "x"], ["--models"]),
        ([], []),
        (["nosuch"], ["nosuch"]),
        (["show"], ["run"]),
        (["show", "/nowhere"], ["/nowhere", "manifest.json"]),
        (["plot", "/nowhere"], ["/nowhere"]),
        (["regenerate", "/nowhere", "--index", "0", "--out", "x.npz"], ["/nowhere"]),
        (["merge", "/nowhere", "--out", "x"], ["/nowhere"]),
        (["sample", "--models", "4", "--out", "x"], ["length"]),
    ],
)
def test_bad_commands(jaxsens_main, tmp_path, monkeypatch, arguments, parts):
    monkeypatch.chdir(tmp_path)
    assert_one_line(jaxsens_main(*arguments), *parts)
    assert list(tmp_path.iterdir()) == []


def test_mistakes_about_a_run(jaxsens_main, run_of_20, tmp_path):
    run = run_of_20
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    another = [*BASE, "--models", "30", "--out", run]
    assert_one_line(jaxsens_main(*another, "--seed", "1"), "seed", "holds 0", "1 given")
    assert_one_line(jaxsens_main(*another, "--eps", "1e-5"), "eps", "holds 0.0", "1e-05 given")
    assert_one_line(jaxsens_main(*another, "--scale", "9"), "number", "holds 10.0", "9.0 given")
    assert_one_line(jaxsens_main("show", run, "--level", "1"), "level", "1.0")
    assert_one_line(jaxsens_main("plot", run, "--dpi", "1"), "dpi", "1")
    assert_one_line(jaxsens_main("plot", run, "--out", tmp_path / "no" / "x.png"), "x.png")
    elsewhere = ["--out", tmp_path / "no" / "x.npz"]
    assert_one_line(jaxsens_main("regenerate", run, "--index", "0", *elsewhere), "x.npz")
    assert_one_line(
        jaxsens_main("regenerate", run, "--index", "-1", "--out", tmp_path / "x.npz"), "index", "-1"
    )
    assert_one_line(jaxsens_main("merge", run, run, "--out", tmp_path / "m"), "both hold model 0")
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_shard_is_named(jaxsens_main, tmp_path):
    run = tmp_path / "run"
    command = [*BASE, "--models", "20", "--chunk", "8", "--batch", "8", "--out", run]
    assert jaxsens_main(*command)[0] == 0
    path = run / "shards" / "8-16.npz"
    path.write_bytes(path.read_bytes()[:100])
    for arguments in (["show", run], ["show", run, "--json"], command, ["plot", run]):
        assert_one_line(jaxsens_main(*arguments), "8-16.npz", "truncated")
    path.unlink()
    assert jaxsens_main(*command)[0] == 0


def test_sample_says_what_it_found(jaxsens_main, run_of_20):
    code, out, err = jaxsens_main(*BASE, "--models", "20", "--out", run_of_20)
    assert (code, err) == (0, "")
    assert f"{run_of_20} holds 20 models" in out
    assert "nothing to do" in out
    assert report.LABELS["p_zero_sensitivity"] in out
    assert f"jaxsens show {run_of_20}" in out.replace("\n", " ")


def test_show_json(jaxsens_main, run_of_20):
    code, out, err = jaxsens_main("show", run_of_20, "--json", "--level", "0.9")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    values = json.loads(out)
    assert {"models", "undecided", "profile", "estimates", "config", "config_hash"} <= values.keys()
    assert values["models"] == 20
    assert len(values["profile"]) == 4
    assert sum(values["profile"]) == 20 * 8
    names = {"p_zero_sensitivity", "p_zero_sensitivity_nonconstant", "p_constant"}
    assert names | {"mean_sensitivity_over_n"} <= values["estimates"].keys()
    for p in values["estimates"].values():
        assert {"estimate", "low", "high", "level", "method", "count", "of"} <= p.keys()
        assert 0 <= p["low"] <= p["estimate"] <= p["high"] <= 1
        assert p["level"] == 0.9
    summary = jaxsens.Run.open(run_of_20).summary()
    assert values["estimates"]["p_zero_sensitivity"]["count"] == summary.zero_sensitivity
    assert values["control"].keys() == values["estimates"].keys()


def test_show_and_plot(jaxsens_main, run_of_20, tmp_path):
    code, out, err = jaxsens_main("show", run_of_20)
    assert (code, err) == (0, "")
    for part in (*report.LABELS.values(), "sensitivity", "undecided", "N=3"):
        assert part in out
    code, out, err = jaxsens_main("plot", run_of_20, "--out", tmp_path / "f.png", "--dpi", "40")
    assert (code, err) == (0, "")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_regenerate(jaxsens_main, run_of_20, tmp_path):
    target = tmp_path / "model.npz"
    assert jaxsens_main("regenerate", run_of_20, "--index", "7", "--out", target)[0] == 0
    cfg = jaxsens.TransformerConfig(length=3, num_layers=1, d_model=4, num_heads=1, d_mlp=4)
    with np.load(target) as file:
        arrays = {name: file[name] for name in file.files}
    drawn = jaxsens.init_params(cfg, jaxsens.inits.uniform(10.0), jaxsens.model_key(0, 7))
    expected = jaxsens.params_to_arrays(drawn)
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, expected[name])
    params = jaxsens.params_from_arrays(cfg, arrays)
    table = np.asarray(jaxsens.truth_table_logits(cfg, params)) > 0
    assert jaxsens.Run.open(run_of_20).arrays()[1].ones[7] == table.sum()


def test_shards_and_merge(jaxsens_main, run_of_20, tmp_path):
    parts = [tmp_path / f"part{i}" for i in range(2)]
    for i, part in enumerate(parts):
        flags = ["--models", "20", "--batch", "8", "--shard", f"{i}/2", "--out", part]
        assert jaxsens_main(*BASE, *flags)[0] == 0
    code, out, err = jaxsens_main("merge", *parts, "--out", tmp_path / "merged")
    assert (code, err) == (0, "")
    assert "20 models" in out
    merged = jaxsens.Run.open(tmp_path / "merged")
    assert merged.ranges() == [(0, 10), (10, 20)]
    assert merged.summary() == jaxsens.Run.open(run_of_20).summary()


def test_the_bar_changes_nothing(jaxsens_main, run_of_20, tmp_path, monkeypatch):
    flags = ["--models", "20", "--chunk", "8", "--batch", "8"]
    quiet = jaxsens_main(*BASE, *flags, "--no-progress", "--out", tmp_path / "quiet")
    assert (quiet[0], quiet[2]) == (0, "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured stderr for a terminal
    code, _, err = jaxsens_main(*BASE, *flags, "--out", tmp_path / "loud")
    assert code == 0
    assert "20/20" in err
    assert_same_contents(tmp_path / "quiet", run_of_20)
    assert_same_contents(tmp_path / "loud", run_of_20)


def test_width_and_tile_are_recorded_and_change_nothing(jaxsens_main, run_of_20, tmp_path):
    flags = ["--models", "20", "--chunk", "8", "--batch", "8", "--no-progress", "--tune", "never"]
    sizes = ["--width", "1", "--tile-bits", "2"]
    assert jaxsens_main(*BASE, *flags, *sizes, "--out", tmp_path / "run")[0] == 0
    assert_same_contents(tmp_path / "run", run_of_20)
    execution = jaxsens.Run.open(tmp_path / "run").manifest["execution"]
    assert (execution["width"], execution["tile_bits"]) == (1, 2)


@pytest.mark.parametrize(
    "command", ["sample", "decide", "show", "plot", "merge", "regenerate", "doctor", ""]
)
def test_help(jaxsens_main, command):
    code, out, err = jaxsens_main(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert "usage" in out.lower()


def test_doctor(jaxsens_main):
    code, out, err = jaxsens_main("doctor")
    assert (code, err) == (0, "")
    assert f"jaxsens {jaxsens.__version__}" in out
    assert "device " in out
    assert "self-check" in out


def test_importing_starts_no_backend():
    code = (
        "import jaxsens, jaxsens.cli; from jax._src import xla_bridge; "
        "assert not xla_bridge._backends, xla_bridge._backends; "
        "import sys; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def start(arguments):
    code = "from jaxsens.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))},
    )


def test_the_command_itself(tmp_path):
    """As a user starts it, without this process's settings."""
    process = start([*BASE, "--models", "abc", "--out", tmp_path / "run"])
    out, err = process.communicate(timeout=120)
    assert_one_line((process.returncode, out, err), "models", "abc")


@pytest.mark.slow
def test_killed_runs_go_on_and_end_with_the_same_files(jaxsens_main, tmp_path):
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    flags = ["--models", "1500", "--chunk", "10", "--batch", "10", "--no-progress"]
    command = ["sample", *SHAPE, *flags]
    held = 0
    for blow in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        process = start([*command, "--cpu-devices", "1", "--out", run])
        limit = time.monotonic() + 120
        while len(list((run / "shards").glob("*.npz"))) < held + 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < limit
            time.sleep(0.005)
        process.send_signal(blow)
        out, err = process.communicate(timeout=120)
        now = len(shards.list_shards(run / "shards"))
        assert held + 2 <= now < 150, "it was over before the blow"
        if blow == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 130
            assert "Traceback" not in err
            assert "run the same command again to go on" in out
            assert f"holds {10 * now:,} finished models" in out
            assert not list(run.glob(".lock*"))
            assert not list((run / "shards").glob("*.tmp-*"))
        held = now
        assert jaxsens_main("show", run, "--json")[0] == 0
    assert jaxsens_main(*command, "--cpu-devices", "4", "--out", run)[0] == 0
    assert jaxsens_main(*command, "--cpu-devices", "4", "--out", undisturbed)[0] == 0
    assert_same_contents(run, undisturbed)
    summary = jaxsens.Run.open(run).summary()
    assert summary.models == 1500
    assert summary == jaxsens.Run.open(undisturbed).summary()
    assert not list(run.glob(".lock*"))
    assert not list(run.rglob("*.tmp-*"))


def test_an_unwritable_compile_cache_changes_nothing(tmp_path):
    below_a_file = tmp_path / "file"
    below_a_file.write_text("")
    shape = [
        "--length",
        "3",
        "--num-layers",
        "1",
        "--d-model",
        "2",
        "--num-heads",
        "1",
        "--d-mlp",
        "2",
        "--models",
        "20",
    ]
    for name, extra in (("plain", []), ("cached", ["--compile-cache", f"{below_a_file}/cache"])):
        command = [sys.executable, "-m", "jaxsens", "sample", *shape, "--out", tmp_path / name]
        subprocess.run([*command, *extra], check=True, capture_output=True)
    runs = [jaxsens.Run.open(tmp_path / name).arrays()[1] for name in ("plain", "cached")]
    assert np.array_equal(runs[0].profile, runs[1].profile)


def test_a_swallowed_signal_stops_at_the_next_check():
    from jaxsens.cli.signals import interruptible

    before = signal.getsignal(signal.SIGTERM)
    with interruptible() as check:
        check()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGTERM) == before
