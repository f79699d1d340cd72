import json
import math
import os
import pathlib
import re
import stat
import subprocess
import sys
import warnings

import jax
import jsonschema
import numpy as np
import pytest

from kme_jax import (
    FourierMap,
    Gaussian,
    Ledger,
    NormalProposal,
    PrivacyBudget,
    Release,
    integer_embedding,
    mean_embedding,
    perturb,
    perturb_securely,
    release,
)
from kme_jax.algorithms import three_steps as algorithms_module
from kme_jax.privacy import gaussian_delta, secure_mechanism, statement, zcdp_epsilon
from kme_jax.privacy.calibration import gaussian_epsilon
from kme_jax.privacy.ledger import LedgerError, Spending
from kme_jax.storage.folders import ReleaseError, UnknownClassError, damaged
from tests import artifacts
from tests.arguments import arguments

ROWS = np.random.default_rng(0).normal([1.0, -2.0], [1.0, 0.5], (2000, 2))
KERNEL = Gaussian(0.5)
BUDGET = PrivacyBudget(1.0, 1e-6)
POINTS = np.random.default_rng(1).normal([1.0, -2.0], 1.5, (60, 2))
PROPOSAL = NormalProposal.create(np.zeros(2), 2.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A release with public points and a ledger, and its folder."""
    folder = tmp_path_factory.mktemp("made")
    ledger = Ledger(folder / "ledger.jsonl")
    result = release(ROWS, KERNEL, POINTS, budget=BUDGET, spending=Spending(ledger, "register-7"))
    return result, result.save(folder / "release"), ledger


@pytest.fixture(scope="module")
def from_proposal():
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = algorithms_module.posterior_mean

        def short(*args, **kwargs):
            return original(*args, **kwargs, num_atoms=10, num_trajectories=2, num_leaps=5)

        patch.setattr(algorithms_module, "posterior_mean", short)
        yield release(ROWS, KERNEL, PROPOSAL, budget=BUDGET, num_points=40, num_features=600)


def test_a_release_is_useful(made):
    result, *_ = made
    assert result.sample.mechanism.secure
    np.testing.assert_allclose(result.sample.expectation(lambda z: z), [1, -2], atol=0.3)


def test_it_is_saved_and_loaded(made):
    result, folder, _ = made
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["manifest.json", "points.npz", "privacy.json", "release.npz"]
    again = Release.load(folder)
    np.testing.assert_array_equal(again.sample.points, result.sample.points)
    np.testing.assert_array_equal(again.sample.weights, result.sample.weights)
    np.testing.assert_array_equal(again.noisy.coordinates, result.noisy.coordinates)
    np.testing.assert_array_equal(again.noisy.feature_map.basis, result.noisy.feature_map.basis)
    assert again.noisy.feature_map.diameter == result.noisy.feature_map.diameter
    assert again.noisy.mechanism == result.noisy.mechanism
    assert again.statement == result.statement == json.loads((folder / "privacy.json").read_text())
    resynthesised = again.resynthesise()
    np.testing.assert_allclose(resynthesised.sample.weights, result.sample.weights, atol=1e-9)


@pytest.mark.long
def test_one_from_a_proposal_is_made_again_in_another_size(from_proposal, tmp_path):
    folder = from_proposal.save(tmp_path / "release")
    again = Release.load(folder)
    assert again.measurement.proposal.dim == 2
    same, larger = again.resynthesise(40), again.resynthesise(70, seed=5)
    np.testing.assert_allclose(same.sample.points, from_proposal.sample.points, atol=1e-4)
    assert larger.sample.points.shape == (70, 2)
    assert larger.statement == from_proposal.statement


def test_nothing_private_is_in_a_release(made):
    """No row of the table, no noise seed, and no exact sum: bytes of all arrays are looked through."""
    result, folder, _ = made
    embedding = integer_embedding(result.noisy.feature_map, ROWS)
    exact = embedding.integer_map.released(embedding.total) / (embedding.integer_map.units * len(ROWS))
    assert not np.isclose(result.noisy.coordinates, exact, rtol=0, atol=1e-9).any()
    with np.load(folder / "release.npz") as file:
        content = b"".join(file[name].tobytes() for name in file.files)
    for row in ROWS[:200]:
        assert row.tobytes() not in content
    for secret in (b"register-7", b"jsonl", str(folder.parent).encode()):
        assert secret not in content


def _private_embeddings():
    fourier = FourierMap.from_kernel(jax.random.key(1), KERNEL, 400, 2)
    small = FourierMap.from_kernel(jax.random.key(1), KERNEL, 20, 2)
    subspace = algorithms_module.public_feature_map(jax.random.key(0), KERNEL, POINTS)
    return [
        perturb_securely(integer_embedding(subspace, ROWS), PrivacyBudget(1.0, 1e-6)),
        perturb_securely(integer_embedding(fourier, ROWS), PrivacyBudget(0.1, 1e-6)),
        perturb_securely(integer_embedding(small, ROWS), PrivacyBudget(1.0, 0.0)),
        perturb(jax.random.key(0), mean_embedding(fourier, ROWS), PrivacyBudget(1.0, 1e-6)),
    ]


def test_statements_validate_and_can_be_recomputed():
    checker = jsonschema.Draft202012Validator(statement.schema())
    for noisy in _private_embeddings():
        text = json.dumps(statement.privacy_statement(noisy), allow_nan=False)
        said = json.loads(text)
        checker.validate(said)
        (mechanism,) = said["measurements"]
        if mechanism["rho"] is not None:
            rho = mechanism["sensitivity"] ** 2 / (2 * mechanism["scale"] ** 2)
            assert mechanism["rho"] == pytest.approx(rho, rel=1e-9)
            delta = said["delta"] - mechanism["failure_probability"]
            for group in said["groups"]:
                mu, epsilon = group["rows"] * math.sqrt(2 * rho), group["epsilon"]
                spent = gaussian_delta(1 / mu, epsilon) + (1 + math.exp(epsilon)) * said["discreteness"]
                assert delta * 0.99 < spent <= delta * (1 + 1e-6)
        assert mechanism["feature_map"]["diameter"] == pytest.approx(mechanism["sensitivity"] * len(ROWS))
        assert [group["epsilon"] for group in said["groups"]] == sorted(group["epsilon"] for group in said["groups"])
        assert said["groups"][0] == {"rows": 1, "epsilon": said["epsilon"]}
        words = statement.describe(said)
        assert words.startswith("NOT PRIVATE") is not said["private"]
        assert f"{said['epsilon']:g}" in words
        with pytest.raises(jsonschema.ValidationError):
            checker.validate(said | {"private": "yes"})
        with pytest.raises(jsonschema.ValidationError):
            checker.validate({name: value for name, value in said.items() if name != "measurements"})


def test_rows_used_as_points_are_said_to_be_unprotected(made):
    result, *_ = made
    assert any("public points" in text for text in result.statement["not_covered"])
    assert result.statement["total"] == {
        "releases": 1,
        "rho": result.noisy.mechanism.rho,
        "epsilon": 1.0,
        "delta": 1e-6,
        "failure_probability": result.noisy.mechanism.failure_probability,
        "discreteness": result.noisy.mechanism.discreteness,
        "pure_epsilons": [],
        "at_delta": {"epsilon": 1.0, "delta": 1e-6},
    }


# -- the ledger


@pytest.fixture(scope="module")
def mechanism():
    embedding = integer_embedding(FourierMap.from_kernel(jax.random.key(1), KERNEL, 20, 2), ROWS)
    return secure_mechanism(embedding.integer_map, len(ROWS), PrivacyBudget(1, 1e-6))


def test_a_second_release_has_to_be_asked_for(mechanism, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.spent("people") == []
    first = ledger.spend("people", mechanism)
    assert first["releases"] == 1
    assert first["epsilon"] == 1
    with pytest.raises(LedgerError, match=r'"people" was released before, with a total of \(ε, δ\) = \(1, 1e-06\)'):
        ledger.spend("people", mechanism)
    assert len(ledger.spent("people")) == 1
    second = ledger.spend("people", mechanism, allow_repeat=True)
    assert second["releases"] == 2
    assert second["rho"] == pytest.approx(2 * mechanism.rho)
    assert second["epsilon"] == pytest.approx(gaussian_epsilon(1 / math.sqrt(4 * mechanism.rho), 1e-6), rel=1e-3)
    assert second["epsilon"] < zcdp_epsilon(2 * mechanism.rho, 1e-6)
    assert 1.4 < second["epsilon"] < 1.6  # about √2, not 2
    assert ledger.spend("others", mechanism)["releases"] == 1
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_a_release_that_the_ledger_refuses_draws_no_noise(made, monkeypatch):
    _, _, ledger = made

    def never(*_):
        raise AssertionError("noise was drawn")

    monkeypatch.setattr("kme_jax.points.measure.perturb_securely", never)
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="released before"):
        release(ROWS, KERNEL, POINTS, budget=BUDGET, spending=Spending(ledger, "register-7"))
    assert ledger.path.read_bytes() == before


def test_pure_epsilons_add_up(tmp_path):
    embedding = integer_embedding(FourierMap.from_kernel(jax.random.key(1), KERNEL, 20, 2), ROWS)
    pure = secure_mechanism(embedding.integer_map, len(ROWS), PrivacyBudget(0.5, 0.0))
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.spend("people", pure)
    assert ledger.spend("people", pure, allow_repeat=True) == {
        "releases": 2,
        "rho": 0.25,
        "epsilon": pytest.approx(1.0, rel=1e-12),
        "delta": 0.0,
        "failure_probability": 0.0,
        "pure_epsilons": [0.5, 0.5],
        "at_delta": {"epsilon": pytest.approx(1.0, rel=1e-12), "delta": 0.0},
    }


def test_what_an_interrupted_run_left_of_a_line_is_closed_off(mechanism, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.spend("people", mechanism)
    whole = ledger.path.read_bytes()
    for length in (1, 5, 12, 40, len(whole) - 2):
        with open(ledger.path, "ab") as file:
            file.write(whole[:length])
        before = len(ledger.spent("people"))
        ledger.spend("people", mechanism, allow_repeat=True)
        assert len(ledger.spent("people")) == before + 1


def test_a_record_without_its_line_break_counts(mechanism, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.spend("people", mechanism)
    for tail in (b" # not", b""):
        ledger.path.write_bytes(ledger.path.read_bytes().split(b"}")[0] + b"}" + tail)
        assert len(ledger.spent("people")) == 1
    with pytest.raises(LedgerError, match="released before"):
        ledger.spend("people", mechanism)
    assert ledger.spend("people", mechanism, allow_repeat=True)["releases"] == 2
    assert len(ledger.spent("people")) == 2


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"not a ledger\n", "line 1 is not a line of a ledger"),
        (b"[]\n", "line 1"),
        (b'{"database": "people"}\n', "line 1"),
        (
            b'{"database": "a", "time": "b", "epsilon": "1", "delta": 0.0, "rho": 0.5, "failure_probability": 0.0}\n',
            "1",
        ),
        (b"\xff\xfe\n", "line 1"),
        (b"another file, without a line break", "line 1"),
        (
            b'{"database": "a", "time": "b", "epsilon": 1.0, "delta": 0.0, "rho": -0.5, "failure_probability": 0.0}\n',
            "1",
        ),
        (
            b'{"database": "a", "time": "b", "epsilon": 1.0, "delta": 0.0, "rho": NaN, "failure_probability": 0.0}\n',
            "1",
        ),
        (b'{"database": "a", "time": "b", "epsilon": 1.0, "delta": 0.0, "rho": 0.5\n', "line 1"),
    ],
)
def test_another_file_is_no_ledger(content, match, mechanism, tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=match):
        Ledger(path).spend("people", mechanism)
    with pytest.raises(LedgerError, match=match):
        Ledger(path).spent("people")
    assert path.read_bytes() == content


def test_a_ledger_that_cannot_be_used(mechanism, tmp_path):
    with pytest.raises(LedgerError, match="cannot be opened for writing"):
        Ledger(tmp_path / "none" / "ledger.jsonl").spend("people", mechanism)
    with pytest.raises(LedgerError, match="is not a file"):
        Ledger(tmp_path).spend("people", mechanism)
    with pytest.raises(LedgerError, match="needs a name"):
        Ledger(tmp_path / "l").spend("", mechanism)
    simulated = perturb(
        jax.random.key(0),
        mean_embedding(FourierMap.from_kernel(jax.random.key(1), KERNEL, 20, 2), ROWS),
        PrivacyBudget(1, 1e-6),
    ).mechanism
    with pytest.raises(LedgerError, match="simulated"):
        Ledger(tmp_path / "l").spend("people", simulated)
    assert not (tmp_path / "l").exists()


def test_a_ledger_on_a_full_disk(mechanism, tmp_path, monkeypatch):
    """The budget counts as not spent, and no noise follows: half a line is no entry."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:20]))
    with pytest.raises(LedgerError, match="disk is full"):
        ledger.spend("people", mechanism)
    monkeypatch.undo()
    assert ledger.spent("people") == []
    assert ledger.spend("people", mechanism)["releases"] == 1
    with pytest.raises(LedgerError, match="is not a file"):
        Ledger("/dev/full").spend("people", mechanism)


# -- folders


def test_an_existing_folder_is_refused(made, tmp_path):
    result, folder, _ = made
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ReleaseError, match="never overwritten"):
        result.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(ReleaseError, match="never overwritten"):
            result.save(tmp_path / name)
    with pytest.raises(ReleaseError, match="cannot be written"):
        result.save(tmp_path / "none" / "release")


def test_a_failed_write_leaves_nothing(made, tmp_path, monkeypatch):
    result, *_ = made

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReleaseError, match="No space left on device"):
        result.save(tmp_path / "release")
    assert list(tmp_path.iterdir()) == []


def _copy(folder, target):
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize("name", ["points.npz", "release.npz"])
@pytest.mark.parametrize("damage", ["cut", "empty", "text", "flipped"])
def test_a_damaged_folder_is_refused(made, tmp_path, name, damage):
    folder = _copy(made[1], tmp_path / "copy")
    content = (folder / name).read_bytes()
    middle = len(content) // 2
    (folder / name).write_bytes(
        {
            "cut": content[:middle],
            "empty": b"",
            "text": b"hello",
            "flipped": content[:middle]
            + bytes(255 - byte for byte in content[middle : middle + 50])
            + content[middle + 50 :],
        }[damage]
    )
    with pytest.raises(ReleaseError, match=f"{name}: is damaged"):
        Release.load(folder)


def test_what_is_no_release(made, tmp_path):
    with pytest.raises(ReleaseError, match="no such folder"):
        Release.load(tmp_path / "none")
    folder = _copy(made[1], tmp_path / "copy")
    (folder / "points.npz").unlink()
    with pytest.raises(ReleaseError, match=r"has no points.npz, which manifest.json lists"):
        Release.load(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(ReleaseError, match=r"has no manifest.json; it is no release, or an earlier version wrote it"):
        Release.load(folder)


def test_a_measurement_is_no_release(made, tmp_path):
    made[0].measurement.save(tmp_path / "measured")
    with pytest.raises(ReleaseError, match=r"holds the measurement of a release of points.*kme-jax synthesise"):
        Release.load(tmp_path / "measured")


def test_a_later_version_is_refused(made, tmp_path):
    folder = _copy(made[1], tmp_path / "copy")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(ReleaseError, match=r"version 99 of its format.*update"):
        Release.load(folder)


@pytest.mark.parametrize("sealed", [False, True])
def test_an_altered_statement_is_refused(made, tmp_path, sealed):
    folder = _copy(made[1], tmp_path / "copy")
    text = (folder / "privacy.json").read_text()
    (folder / "privacy.json").write_text(text.replace('"epsilon": 1.0', '"epsilon": 0.1', 1))
    if sealed:
        artifacts.seal(folder)
    with pytest.raises(ReleaseError, match="does not follow" if sealed else "not the file that manifest"):
        Release.load(folder)


def test_no_pickle_is_read(made, tmp_path):
    folder = _copy(made[1], tmp_path / "copy")
    np.savez(folder / "points.npz", points=np.array([{}], object), weights=np.ones(1))
    with pytest.raises(ReleaseError, match="damaged"):
        Release.load(folder)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"delta": 1 / 2000}, "below 1/N"),
        ({"delta": 0.0}, "Laplace"),
        ({"delta": 1.0}, "delta must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"num_points": 0}, "num_points"),
    ],
)
def test_what_release_refuses(change, match, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match=match):
        release(ROWS, KERNEL, POINTS, **arguments(ledger=ledger, database="people", **change))
    assert not ledger.path.exists()


@pytest.mark.slow
def test_killed_at_any_moment_there_is_a_whole_release_or_none_and_the_ledger_knows_of_it(tmp_path):
    """Real processes, killed at random while they record and write one release after another."""
    code = f"""
import os, pathlib, random, signal, sys, time
import numpy as np
from tests.test_release import KERNEL, POINTS, ROWS, BUDGET
from kme_jax import Ledger, release
folder = pathlib.Path({str(tmp_path)!r})
made = release(ROWS, KERNEL, POINTS, budget=BUDGET)
random.seed(0)
for child in range(8):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        for i in range(1000):
            Ledger(folder / "ledger.jsonl").spend("people", made.noisy.mechanism, allow_repeat=True)
            made.save(folder / f"release-{{child}}-{{i}}")
            os.write(writer, b"x")
        os._exit(0)
    for _ in range(random.randint(1, 3)):  # however slow the machine is
        os.read(reader, 1)
    time.sleep(random.uniform(0, 0.05))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    folders = [path for path in tmp_path.iterdir() if path.is_dir() and not path.name.startswith(".")]
    assert len(folders) >= 8
    for folder in folders:
        Release.load(folder)
    spent = len(Ledger(tmp_path / "ledger.jsonl").spent("people"))
    assert len(folders) <= spent <= len(folders) + 8
    assert sum(path.name.startswith(".kme_jax-") for path in tmp_path.iterdir()) <= 8


@pytest.mark.slow
def test_two_processes_on_one_ledger(tmp_path):
    code = f"""
import pathlib
from kme_jax import Ledger
from kme_jax.privacy.mechanisms import Mechanism
mechanism = Mechanism("gaussian", 1.0, 1.0, 1.0, 1e-6, "zcdp", 100, secure=True, noise_source="test", rho=0.5)
for _ in range(50):
    Ledger(pathlib.Path({str(tmp_path)!r}) / "ledger.jsonl").spend("people", mechanism, allow_repeat=True)
"""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(Ledger(tmp_path / "ledger.jsonl").spent("people")) == 100


def test_epsilon_follows_from_the_statement_by_the_script_in_the_documentation(made, monkeypatch):
    page = (pathlib.Path(__file__).parent.parent / "docs" / "privacy.md").read_text()
    (script,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "json.load(" in block]
    assert len(script.strip().splitlines()) <= 10
    monkeypatch.chdir(made[1].parent)
    variables = {}
    exec(script, variables)
    assert 0.99 < variables["spent"] / variables["said"]["delta"] <= 1
    text = (made[1] / "privacy.json").read_text()
    other = json.loads(text) | {"epsilon": 0.9}
    monkeypatch.setattr("json.load", lambda _: other)
    with pytest.raises(AssertionError):
        exec(script, {})


def test_an_unknown_class_is_no_damage(tmp_path):
    with pytest.raises(ReleaseError) as caught, damaged(tmp_path / "release.npz"):
        raise UnknownClassError("no class 'Mine' is known here; if it is your own, import the module that defines it")
    assert str(caught.value).startswith(f"{tmp_path / 'release.npz'}: no class 'Mine' is known here")
