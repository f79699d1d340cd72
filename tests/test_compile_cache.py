import collections
import json
import os
import pathlib
import re
import stat
import struct
import subprocess
import sys
import zlib

import jax
import numpy as np
import pytest

from kme_jax._numerics.compile_cache import (
    UnsafeFolderError,
    cache_folder,
    private_folder,
    prune,
)
from tests.release_programs import VALUES

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _python(*words, **environment):
    """Runs Python without what the environment says about caches."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "KME_JAX_", "XDG_"))}
    kept |= {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env=kept | {name: str(value) for name, value in environment.items()},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "/home/me/.cache/kme_jax"),
        ({"XDG_CACHE_HOME": "/scratch"}, "/scratch/kme_jax"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/kme_jax"),
        ({"XDG_CACHE_HOME": "/scratch", "KME_JAX_CACHE_DIR": "/elsewhere"}, "/elsewhere"),
        ({"KME_JAX_CACHE_DIR": "~/mine"}, "/home/me/mine"),
        ({"KME_JAX_CACHE_DIR": ""}, None),
        ({"KME_JAX_CACHE_DIR": "off"}, None),
    ],
)
def test_the_folder_is_the_environments(environment, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder(environment) == (expected and pathlib.Path(expected))


def _mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_the_owners_alone(tmp_path):
    folder = private_folder(tmp_path / "a" / "b")
    assert _mode(folder) == 0o700


def test_a_folder_that_others_read_is_closed_to_them(tmp_path):
    tmp_path.chmod(0o755)
    assert private_folder(tmp_path) == tmp_path.resolve()
    assert _mode(tmp_path) == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_have_written_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(UnsafeFolderError, match="other users can write to it"):
        private_folder(tmp_path)
    assert _mode(tmp_path) == mode


def test_a_folder_that_others_may_replace_is_refused(tmp_path):
    (tmp_path / "shared").mkdir()
    folder = private_folder(tmp_path / "shared" / "mine")
    (tmp_path / "shared").chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(folder)
    for path in (folder, link):
        with pytest.raises(UnsafeFolderError, match=r"other users can replace it, as they can write to .*shared$"):
            private_folder(path)
    (tmp_path / "shared").chmod(0o1777)  # as /tmp is: only owners can rename what is there
    assert private_folder(link) == folder


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(UnsafeFolderError, match="belongs to another user"):
        private_folder(folder)
    with pytest.raises(UnsafeFolderError, match="other users can replace it"):
        private_folder(folder / "within")
    os.chown(folder, 0, 0)
    (folder / "planted").write_bytes(b"")
    os.chown(folder / "planted", 12345, 12345)
    with pytest.raises(UnsafeFolderError, match="something in it belongs to another user"):
        private_folder(folder)


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    for age, name in enumerate(["new", "old", "older", "oldest"]):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    os.utime(tmp_path / "older", (2e9, 1e9))  # was read since
    prune(tmp_path, 25)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "older"}
    prune(tmp_path, 20)
    assert len(list(tmp_path.iterdir())) == 2


USE = "from kme_jax._numerics.compile_cache import use_compile_cache; found = use_compile_cache(); import jax; "
SHOW = "print(found, jax.config.jax_compilation_cache_dir)"


@pytest.mark.long
def test_where_there_is_no_cache_work_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for path in ("", "off", tmp_path / "file", tmp_path / "file" / "within"):
        run = _python("-c", USE + SHOW, KME_JAX_CACHE_DIR=path)
        assert (run.stdout, run.stderr, run.returncode) == ("None None\n", "", 0)
    run = _python("-c", USE + SHOW, KME_JAX_CACHE_DIR=tmp_path / "open")
    assert run.stdout == "None None\n"
    assert run.stderr.startswith(f"warning: compiled programs are not kept: {tmp_path}/open: other users can write")
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_cache_that_was_set_up_for_jax_stays(tmp_path):
    run = _python("-c", USE + SHOW, JAX_COMPILATION_CACHE_DIR=tmp_path / "other", KME_JAX_CACHE_DIR=tmp_path / "mine")
    assert run.stdout == f"{tmp_path}/other {tmp_path}/other\n"
    run = _python("-c", USE + SHOW, JAX_ENABLE_COMPILATION_CACHE="false", KME_JAX_CACHE_DIR=tmp_path / "mine")
    assert run.stdout == "None None\n"
    assert not (tmp_path / "mine").exists()


COUNTED = """
import jax, sys
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
from kme_jax.cli import run
try:
    run()
finally:
    print("misses", events.count("/jax/compilation_cache/cache_misses"))
"""


@pytest.mark.long
def test_the_command_keeps_its_programs(tmp_path):
    """The second run compiles nothing, finds the same, and is as quiet."""
    folder = tmp_path / "cache"
    plan = ["plan", "--num_rows=1000", "--dim=1", "--epsilon=1", "--delta=1e-6", "--num_features=100", "--no_errors"]
    runs = [_python("-c", COUNTED, *plan, KME_JAX_CACHE_DIR=folder) for _ in range(2)]
    for run in runs:
        assert (run.returncode, run.stderr) == (0, "")
    texts, misses = zip(*(run.stdout.rsplit("misses", 1) for run in runs), strict=True)
    assert texts[0] == texts[1]
    assert int(misses[0]) > 0
    assert int(misses[1]) == 0
    assert _mode(folder) == 0o700


@pytest.mark.long
def test_experiments_keep_their_programs(tmp_path):
    sizes = ["--num_rows=100", "--max_points=5", "--num_noise_draws=2", "--improved_sizes=5", "--improved_draws=1"]
    words = ["-m", "experiments.figure1", *sizes, f"--output_dir={tmp_path}/out"]
    run = _python(*words, KME_JAX_CACHE_DIR=tmp_path / "cache")
    assert run.returncode == 0, run.stderr
    assert list((tmp_path / "cache").glob("*-cache"))


def _floats(text):
    """The numbers of a program: decimal, and the bytes of arrays, which are printed as hexadecimal digits."""
    for word in re.findall(r"-?\d+\.\d+(?:[eE][-+]?\d+)?", text):
        yield float(word)
    for word in re.findall(r'dense<"0x([0-9A-F]+)">', text):
        data = bytes.fromhex(word)
        for kind in "fd":
            size = struct.calcsize(kind)
            yield from struct.unpack(f"<{len(data) // size}{kind}", data[: len(data) // size * size])


@pytest.mark.parametrize(
    "words", [pytest.param([], marks=pytest.mark.slow), pytest.param(["all"], marks=pytest.mark.long)], ids=str
)
def test_no_private_value_is_a_constant_of_a_program(tmp_path, words):
    """Two databases that differ in one row lead to the same programs, and no program has the numbers of that row."""
    run = _python("-W", "ignore", "-m", "tests.release_programs", tmp_path, *words)
    assert run.returncode == 0, run.stderr
    programs = {name: [path.read_text() for path in (tmp_path / name).iterdir()] for name in VALUES}
    assert len(programs["first"]) > 50
    assert collections.Counter(programs["first"]) == collections.Counter(programs["second"])
    entries = json.loads(run.stdout)
    assert entries["first"] == entries["second"]
    noisy = np.abs([value for values in VALUES.values() for value in values])
    found = {abs(number) for text in programs["first"] for number in _floats(text)}
    assert len(found) > 20
    found = np.asarray(sorted(found))[:, None]
    assert not np.any(np.abs(found - noisy) < 1e-6)
    # What is kept is compressed, by zlib or zstandard.
    for path in (tmp_path / "cache").iterdir():
        data = path.read_bytes()
        with_bytes = zlib.decompress(data) if data[:1] == b"\x78" else data
        for value in (value for values in VALUES.values() for value in values):
            assert struct.pack("<f", value) not in with_bytes, path
            assert struct.pack("<d", value) not in with_bytes, path


def test_a_constant_would_be_found():
    value = VALUES["first"][0]
    text = jax.jit(lambda x: x + value).lower(np.float32(0)).as_text()
    assert min(abs(number - value) for number in _floats(text)) < 1e-6
    data = np.asarray([0.0, value]).tobytes().hex().upper()
    assert value in _floats(f'%0 = stablehlo.constant dense<"0x{data}"> : tensor<2xf64>')
