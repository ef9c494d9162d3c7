"""``jaxsens decide``: the numbers of jaxsens.decide, on the command line and in a file."""

import dataclasses
import errno
import json
import os
import signal

import numpy as np
import pytest

import jaxsens
from jaxsens import cli
from jaxsens.montecarlo import decide as loop

CFG = jaxsens.TransformerConfig(length=4, num_layers=1, d_model=4, num_heads=1, d_mlp=8)
LAW = jaxsens.inits.xavier_normal()
SHAPE = ["--num-layers", "1", "--d-model", "4", "--num-heads", "1", "--d-mlp", "8", "--eps", "0"]
ASKED = {"models": 40, "seed": 3, "start": 7, "max_probes": 2}
# The devices of this process are fixed by now; --cpu-devices must ask for the same number.
BASE = ["decide", *SHAPE, "--init", "xavier_normal", "--cpu-devices", "4", "--seed", "3"]
COMMAND = [*BASE, "--length", "4", "--models", "40", "--start", "7", "--max-probes", "2"]
COLUMNS = ("index", "verdict", "how", "probes", "witness")


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
def decisions():
    """What COMMAND must find; only to be read."""
    return jaxsens.decide(CFG, LAW, **ASKED)


@pytest.fixture
def nothing_is_computed(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("computed")

    monkeypatch.setattr(loop, "_decide", refuse)


def values_of(text):
    """The last word of each row of the tables, by what stands before it."""
    rows = (line.strip().rsplit("  ", 1) for line in text.splitlines())
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}


def assert_one_line(result, *parts):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("jaxsens: ")
    for part in parts:
        assert part.lower() in err.lower(), err


def test_the_table_says_what_was_decided(jaxsens_main, decisions):
    code, out, err = jaxsens_main(*COMMAND)
    assert (code, err) == (0, "")
    decided, rounds = (values_of(part) for part in out.split("Rounds of probes"))
    counts, p = decisions.counts, decisions.estimate()
    assert min(counts.zero_sensitivity, counts.no_zero_sensitivity, counts.probed) > 0
    for label, value in (
        ("models", 40),
        ("K_0 >= 1", counts.zero_sensitivity),
        ("K_0 = 0", counts.no_zero_sensitivity),
        ("unresolved (rounding decides)", counts.unresolved),
        ("unknown (not every string evaluated)", 0),
        ("decided by a witness in float32", counts.probed),
        ("decided by a witness in float64", counts.confirmed),
        ("evaluated on every string", counts.enumerated),
    ):
        assert decided[label] == str(value), label
    assert decided["P(K_0>=1)"] == f"{p.estimate:.4g}"
    assert decided["95 % interval"] == f"[{p.low:.4g}, {p.high:.4g}]"
    assert decided["one-sided 95 % lower bound"] == f"{decisions.lower_bound():.4g}"
    assert decided["probes a model"] == f"{counts.probes / 40:.4g}"
    for probes, left in decisions.rounds:
        assert rounds[str(probes)] == str(left)
    assert "certified" not in out


def test_json_is_one_object_with_the_same_numbers(jaxsens_main, decisions):
    code, out, err = jaxsens_main(*COMMAND, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    values = json.loads(out)
    assert {name: values[name] for name in decisions.counts._fields} == decisions.counts._asdict()
    assert values["p_zero_sensitivity"] == json.loads(json.dumps(decisions.estimate()._asdict()))
    assert values["lower_bound"] == decisions.lower_bound()
    assert (values["lower_bound_only"], values["interrupted"]) == (False, False)
    assert values["rounds"] == [list(pair) for pair in decisions.rounds]
    assert {name: values[name] for name in ("seed", "start", "max_probes")} == {
        name: ASKED[name] for name in ("seed", "start", "max_probes")
    }
    assert values["config"] == dataclasses.asdict(CFG)
    assert values["law"] == LAW.describe()
    assert values["versions"]["jaxsens"] == jaxsens.__version__
    assert "jax" in values["versions"]


def test_without_a_table_it_is_a_lower_bound(jaxsens_main):
    flags = ["--length", "40", "--models", "20", "--max-probes", "1"]
    code, out, err = jaxsens_main(*BASE, *flags, "--no-enumerate")
    assert (code, err) == (0, "")
    counts = jaxsens.decide(
        dataclasses.replace(CFG, length=40), LAW, models=20, seed=3, max_probes=1
    ).counts
    assert counts.unknown > 0
    assert counts.enumerated == 0
    text = " ".join(out.split())
    assert f"certified lower bound: {counts.unknown} of 20 models are unknown" in text
    assert f"P(K_0 >= 1) >= {counts.lower_bound():.4g} at one-sided 95 %" in text
    assert values_of(out)["unknown (not every string evaluated)"] == str(counts.unknown)


def test_enumeration_can_be_left_out(jaxsens_main, decisions):
    code, out, _ = jaxsens_main(*COMMAND, "--no-enumerate", "--json")
    values = json.loads(out)
    assert code == 0
    assert values["unknown"] == decisions.counts.enumerated > 0
    assert (values["enumerated"], values["lower_bound_only"]) == (0, True)
    assert values["enumerate"] is False
    low, high = values["p_zero_sensitivity"]["range"]
    assert low < high == 1


def test_the_file_holds_a_row_a_model(jaxsens_main, decisions, tmp_path):
    target = tmp_path / "decided.npz"
    assert jaxsens_main(*COMMAND, "--out", target)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["decided.npz"]
    with np.load(target) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(arrays.pop("meta").item())
    assert arrays.keys() == set(COLUMNS)
    for name in COLUMNS:
        expected = getattr(decisions, name)
        assert arrays[name].dtype == expected.dtype
        np.testing.assert_array_equal(arrays[name], expected)
    assert {"length": 4, "seed": 3, "start": 7, "max_probes": 2}.items() <= meta.items()
    assert meta["config"] == dataclasses.asdict(CFG)
    assert meta["law"] == LAW.describe()


@pytest.mark.usefixtures("nothing_is_computed")
def test_files_that_cannot_be_written_are_refused_first(jaxsens_main, tmp_path):
    taken, dangling = tmp_path / "taken.npz", tmp_path / "dangling.npz"
    taken.write_bytes(b"mine")
    dangling.symlink_to(tmp_path / "nowhere.npz")
    for out, part in (
        (taken, "exists"),
        (dangling, "exists"),
        (tmp_path / "no" / "x.npz", "No such file or directory"),
        (taken / "x.npz", "Not a directory"),
        ("/proc/x.npz", "cannot be written"),
        (tmp_path / f"{'x' * 250}.npz", "too long"),
        (tmp_path / "x.txt", ".npz"),
        (tmp_path, ".npz"),
        ("", ".npz"),
        ("a\0b.npz", ".npz"),
    ):
        assert_one_line(jaxsens_main(*COMMAND, "--out", out), "out: ", part)
    assert taken.read_bytes() == b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"taken.npz", "dangling.npz"}


def test_a_full_disk_leaves_no_file_and_the_numbers(jaxsens_main, decisions, tmp_path, monkeypatch):
    def full(file, **_):
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez_compressed", full)
    code, out, err = jaxsens_main(*COMMAND, "--json", "--out", tmp_path / "x.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert "No space left" in err
    assert json.loads(out)["zero_sensitivity"] == decisions.counts.zero_sensitivity
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_is_computed")
@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--models", "0"], ["models", "0"]),
        (["--models", "2.5"], ["models", "2.5"]),
        (["--start", "-1"], ["start", "-1"]),
        (["--start", str(2**63)], ["start", str(2**63)]),
        (["--max-probes", "0"], ["max_probes", "0"]),
        (["--tolerance", "nan"], ["tolerance", "nan"]),
        (["--seed", "-1"], ["seed", "-1"]),
        (["--batch", "0"], ["batch", "0"]),
        (["--devices", "99"], ["devices", "99"]),
        (["--cpu-devices", "0"], ["cpu-devices", "0"]),
        (["--length", "65537"], ["length", "65537"]),
        (["--length", "31", "--enumerate"], ["length", "31"]),
        (["--init", "nosuch"], ["init", "nosuch"]),
        (["--group-law", "biases=normal:x"], ["group-law", "x"]),
        (["--enumerate", "yes"], ["yes"]),
        (["--keep", "sums"], ["keep"]),
    ],
)
def test_bad_flags(jaxsens_main, tmp_path, flags, parts):
    assert_one_line(jaxsens_main(*COMMAND, "--out", tmp_path / "x.npz", *flags), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_what_was_decided(jaxsens_main, tmp_path, monkeypatch, blow):
    """Of chunks of 64 models the second is interrupted."""
    expected = jaxsens.decide(
        CFG, LAW, models=64, seed=3, max_probes=2, enumerate=False, batch=64
    ).counts
    original, calls = loop._decide, []

    def struck(plan, index):
        calls.append(len(index))
        if len(calls) % 2 == 0:
            os.kill(os.getpid(), blow)
        return original(plan, index)

    monkeypatch.setattr(loop, "_decide", struck)
    monkeypatch.setattr(loop, "_CALLS_PER_CHUNK", 1)
    flags = ["--length", "4", "--models", "100", "--batch", "64", "--max-probes", "2"]
    command = [*BASE, *flags, "--no-enumerate", "--out", tmp_path / "x.npz"]
    code, out, err = jaxsens_main(*command)
    assert (code, err) == (130, "")
    assert values_of(out)["models"] == "64"
    assert values_of(out)["K_0 >= 1"] == str(expected.zero_sensitivity)
    text = " ".join(out.split())
    assert "64 of 100 models decided" in text
    assert "x.npz is not written" in text
    assert "--start 64 --models 36 does the rest" in text
    code, out, err = jaxsens_main(*command, "--json")
    values = json.loads(out)
    assert (code, err) == (130, "")
    assert {name: values[name] for name in expected._fields} == expected._asdict()
    assert (values["interrupted"], values["rounds"]) == (True, [])
    assert calls == [64, 36] * 2
    assert list(tmp_path.iterdir()) == []


def test_the_bar_is_drawn_on_stderr(jaxsens_main, monkeypatch):
    plain = jaxsens_main(*COMMAND, "--json")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured stderr for a terminal
    code, out, err = jaxsens_main(*COMMAND, "--json")
    assert (code, out) == (0, plain)
    assert "40/40" in err
    assert jaxsens_main(*COMMAND, "--json", "--no-progress") == (0, plain, "")


def test_help(jaxsens_main):
    code, out, err = jaxsens_main("decide", "--help")
    assert (code, err) == (0, "")
    for flag in ("--enumerate, --no-enumerate", "--max-probes", "--start", "--out", "--json"):
        assert flag in out
