"""Committed results can be traced to a commit of the project."""

import json
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "figures").glob("*.json"))


def _git(*words):
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def history():
    """Skips where there is none: in a source distribution, or a clone without it."""
    try:
        whole = _git("rev-parse", "--is-shallow-repository")
        top = _git("rev-parse", "--show-toplevel")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if whole.stdout.strip() != "false" or pathlib.Path(top.stdout.strip()) != ROOT:
        pytest.skip("the history is not available")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_result_is_of_a_commit_in_the_history(path, history):
    commit = json.loads(path.read_text())["environment"]["git_commit"]
    assert commit
    assert _git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit


def test_there_are_results():
    assert len(RESULTS) > 10
