"""Every notebook runs from top to bottom at a small size."""

import re
import warnings
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.py"))


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernelspec ``python3`` of the running interpreter, ahead of whatever is installed."""
    from ipykernel.kernelspec import write_kernel_spec

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        write_kernel_spec(tmp_path / "jupyter" / "kernels" / "python3")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    # Spawned by the kernel manager, so it needs no configuration of the user's.
    for name in ("JUPYTER_CONFIG_DIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return "python3"


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(source, kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSENS_NOTEBOOK_MODELS", "200")
    work = tmp_path / "work"
    work.mkdir()
    with warnings.catch_warnings():
        # Third-party: zmq's and jupyter's own deprecations, and sockets that nbclient leaves to the
        # garbage collector. The notebook's cells run in another process.
        for module in ("jupyter_client", "jupyter_core", "nbclient", "nbformat", "zmq", "tornado"):
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=module)
        import jupytext
        import nbclient

        notebook = jupytext.read(source)
        client = nbclient.NotebookClient(
            notebook, timeout=300, kernel_name=kernel, resources={"metadata": {"path": str(work)}}
        )
        client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.execution_count is not None for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    # Python's warnings show on stderr; log lines, as of a GPU that jax cannot use, are no failure.
    text = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stderr")
    assert not re.search(r"\w+Warning: ", text), text
    assert not list(work.iterdir()), "a notebook leaves no files behind"
