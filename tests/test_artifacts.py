"""Every field of every file of a release is changed: what does not follow from the mechanisms is refused."""

import dataclasses
import json
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import warnings

import jax
import numpy as np
import pyarrow as pa
import pytest

from kme_jax import (
    Bounds,
    FourierMap,
    Gaussian,
    LabelledMap,
    Ledger,
    Matern32,
    Measurement,
    NoisyEmbedding,
    PrivacyBudget,
    Release,
    cli,
    load,
    measure,
    release,
)
from kme_jax.generators.measure import measure_generator
from kme_jax.generators.networks import MLP
from kme_jax.generators.release import GeneratorMeasurement, GeneratorRelease
from kme_jax.generators.settings import Training
from kme_jax.generators.train import train_generator
from kme_jax.points.release import points_statement
from kme_jax.privacy import secure_mechanism
from kme_jax.privacy.ledger import Spending
from kme_jax.storage import folders
from kme_jax.storage.folders import ReleaseError
from kme_jax.table.columns import Categorical, Numeric, Ordinal
from kme_jax.table.measure import measure_table, release_table
from kme_jax.table.release import TableMeasurement, TableRelease, table_statement
from kme_jax.table.schema import Schema
from tests import artifacts

pytestmark = pytest.mark.usefixtures("no_fits")

BUDGET = PrivacyBudget(1.0, 1e-6)
BOUNDS = Bounds.create([-3, -3], [3, 3], ["age", "income"])
LOADERS = {
    "release": Release.load,
    "measurement of frequencies": Measurement.load,
    "measurement on a lattice": Measurement.load,
    "table release": TableRelease.load,
    "table measurement": TableMeasurement.load,
    "generator": GeneratorRelease.load,
    "generator measurement": GeneratorMeasurement.load,
}
SLOW = ("release", "generator")  # loaders with the most mutants to refuse
# Of all mutants one in so many is tried. `python -m tests.test_artifacts` tries all of them.
STRIDES = {
    "release": 3,
    "measurement of frequencies": 7,
    "measurement on a lattice": 7,
    "table release": 9,
    "table measurement": 19,
    "generator": 5,
    "generator measurement": 5,
}
# Changes after which a folder is still a release with the same privacy statement: of the synthetic data, of what the
# data were made for, of versions, and of how a file is written. Files of earlier versions have no relation: theirs is
# replace_one.
HARMLESS = re.compile(
    r"report\.html"
    r"|points\.npz (points|weights|columns|seed)"
    r"|rows\.npz (rows\.|json\.(rows\.fields\.(weights|probabilities|leaves)|seed|num_rows))"
    r"|schema\.json columns\.\d+\.(name|unit|categories|default|lower|upper)"
    r"|privacy\.json versions\."
    r"|release\.npz (bounds\.(lower|upper)|feature_map\.(points|turns)|proposal\.(mean|scale))"
    r"|release\.npz json\.(feature_map\.fields\.(tolerance|basis_norm|radius|least_cosine)|proposal)"
    r"|measured\.npz (embedding\.feature_map\.features\.turns|json\.embedding\.feature_map)"
    r"|generator\.npz (state |shares|rows\.|json\.(report|measured|network|rows))"
    r"|[a-z.]*npz json\..*fields\.(relation|moments|knots|max_cells|dependence|parities): dropped"  # it has a default
    r"|[a-z.]*npz flipped"
)


@pytest.fixture(scope="module")
def folder_of(made_once):
    """A small folder of each kind, by its name in LOADERS. A generator takes long to make, and is for slow tests."""

    def folder(name: str) -> pathlib.Path:
        make = _make_generator if name == "generator" else _make_others
        return made_once(make.__name__, make) / name

    return folder


_SLOW = pytest.param("generator", marks=pytest.mark.slow)


def _make_others(root: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    rows, points = rng.normal(size=(300, 2)), rng.uniform(-3, 3, (12, 2))
    ledger = Ledger(root / "ledger")
    for again in (False, True):
        made = release(
            rows,
            Gaussian(8.0),
            points,
            budget=BUDGET,
            bounds=BOUNDS,
            spending=Spending(ledger, "rows", allow_repeat=again),
        )
    made.save(root / "release")
    folder = root / "measurement on a lattice"
    measure(rows, Gaussian(8.0), budget=BUDGET, bounds=BOUNDS, num_features=200, folder=folder)
    folder = root / "measurement of frequencies"
    measure(rows, Matern32(0.5), budget=BUDGET, bounds=BOUNDS, num_features=20, folder=folder)
    columns = (
        Numeric("age", 0, 5000, integer=True, nullable=True),
        Categorical("sex", ("f", "m")),
        Ordinal("level", ("a", "b", "c", "d")),
    )
    age = np.where(rng.random(4000) < 0.3, 40, rng.integers(0, 5000, 4000))
    table = pa.table({"age": age, "sex": rng.choice(["f", "m"], 4000), "level": rng.choice(list("abcd"), 4000)})
    budget = PrivacyBudget(3.0, 1e-6)
    release_table(table, Schema(columns), budget=budget, target="sex", num_rows=50).save(root / "table release")
    measure_table(table, Schema(columns), budget=budget, folder=root / "table measurement")
    _measure_generator(root / "generator measurement")


def _measure_generator(folder: pathlib.Path | None = None) -> GeneratorMeasurement:
    rng = np.random.default_rng(1)
    labelled = np.concatenate([rng.normal(size=(500, 2)), rng.integers(0, 3, (500, 1))], axis=1)
    features = LabelledMap(FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 20, 2), 3)
    return measure_generator(labelled, features, budget=PrivacyBudget(1.0, 1e-5), folder=folder)


def _make_generator(root: pathlib.Path) -> None:
    measured = _measure_generator()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = Training(num_steps=50)
        made = train_generator(jax.random.key(1), measured.embedding, MLP((4,), 2), training, counts=measured.counts)
    GeneratorRelease.create(made, measured, ("bounds",)).save(root / "generator")


def _load(load, folder: pathlib.Path) -> str | None:
    """The error, if there is one. It is one line, and nothing else is raised, not even a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            load(folder)
        except ReleaseError as error:
            text = str(error)
            assert "\n" not in text
            assert len(text) < len(str(folder)) + 300
            return text
    return None


def _try_all(name: str, folder: pathlib.Path, copy: pathlib.Path, stride: int) -> tuple[int, list[str]]:
    """How many mutants were tried, and those that were accepted when the manifest was made to fit."""
    shutil.copytree(folder, copy)
    tried, accepted = 0, []
    for number, (file, label, content) in enumerate(artifacts.mutants(folder)):
        if number % stride or (mutant := content()) == (folder / file).read_bytes():
            continue
        tried += 1
        (copy / file).write_bytes(mutant)
        assert _load(LOADERS[name], copy) is not None, f"{file} {label} does not have its digest"
        if file != artifacts.MANIFEST:
            artifacts.seal(copy)
            if _load(LOADERS[name], copy) is None:
                accepted.append(f"{file} {label}")
        for changed in (file, artifacts.MANIFEST):
            shutil.copyfile(folder / changed, copy / changed)
    return tried, accepted


@pytest.mark.parametrize(
    ("name", "share"),
    [
        *(pytest.param(name, 20, id=f"{name}-few") for name in LOADERS if name not in SLOW),
        *(pytest.param(name, 20, id=f"{name}-few", marks=pytest.mark.slow) for name in SLOW),
        *(pytest.param(name, 2, id=f"{name}-many", marks=pytest.mark.long) for name in LOADERS),
    ],
)
def test_mutants_are_refused(folder_of, tmp_path, name, share):
    tried, accepted = _try_all(name, folder_of(name), tmp_path / "copy", STRIDES[name] * share)
    assert tried > 200 // share
    assert [label for label in accepted if not HARMLESS.match(label)] == []


@pytest.mark.parametrize("name", ["release", "table release", _SLOW])
def test_the_command_refuses_in_one_line(folder_of, tmp_path, capsys, name):
    folder = folder_of(name)
    shutil.copytree(folder, tmp_path / "copy")
    for number, (file, label, content) in enumerate(artifacts.mutants(folder)):
        if number % 199 or (mutant := content()) == (folder / file).read_bytes():
            continue
        (tmp_path / "copy" / file).write_bytes(mutant)
        for sealed in (False, True):
            if sealed and file != artifacts.MANIFEST:
                artifacts.seal(tmp_path / "copy")
            status = cli.main(["show", str(tmp_path / "copy")])
            out, err = capsys.readouterr()
            if status == 0:
                assert sealed
                assert HARMLESS.match(f"{file} {label}")
            else:
                assert (status, out) == (2, "")
                assert err.startswith("error: ")
                assert err.count("\n") == 1
                assert err[:-1].isprintable()
        for changed in (file, artifacts.MANIFEST):
            shutil.copyfile(folder / changed, tmp_path / "copy" / changed)


def test_another_seed_is_harmless(folder_of, tmp_path):
    """A manifest that was made to fit is no signature."""
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("release"), folder)
    arrays = artifacts.read_arrays((folder / "points.npz").read_bytes())
    (folder / "points.npz").write_bytes(artifacts.write_arrays(arrays | {"seed": np.asarray(9)}))
    artifacts.seal(folder)
    assert Release.load(folder).seed == 9


@pytest.mark.parametrize(
    "field", ["epsilon", "delta", "rho", "num_rows", "groups", "relation", "unit", "not_covered", "total"]
)
@pytest.mark.parametrize("name", ["release", "table release", _SLOW])
def test_what_a_statement_promises_cannot_be_edited(folder_of, tmp_path, name, field):
    shutil.copytree(folder_of(name), tmp_path / "copy")
    path = tmp_path / "copy" / "privacy.json"
    said = json.loads(path.read_text())
    for label, value in artifacts.changes(said[field]).items():
        path.write_text(json.dumps(said | {field: value}))
        artifacts.seal(tmp_path / "copy")
        assert _load(LOADERS[name], tmp_path / "copy") is not None, f"{field} {label}"
    path.write_text(json.dumps(said))
    artifacts.seal(tmp_path / "copy")
    assert _load(LOADERS[name], tmp_path / "copy") is None


_MEMORY = """
import resource, sys
from kme_jax import load
from kme_jax.storage import ReleaseError
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
load(sys.argv[1])
before = peak()
for folder in sys.argv[2:]:
    try:
        load(folder)
    except ReleaseError:
        continue
    raise SystemExit(f"{folder} was accepted")
print((peak() - before) // 1024)
"""


@pytest.mark.long
def test_no_folder_takes_much_more_memory_than_it_has_bytes(folder_of, tmp_path):
    made = []
    for name, file in (("release", "release.npz"), ("table release", "rows.npz")):
        for label, content in artifacts.npz_files((folder_of(name) / file).read_bytes()):
            if "large array" in label or "compressed" in label or label.startswith("a header"):
                made.append(tmp_path / f"{name} {label}")
                shutil.copytree(folder_of(name), made[-1])
                (made[-1] / file).write_bytes(content())
                artifacts.seal(made[-1])
    made.append(tmp_path / "many rows")
    shutil.copytree(folder_of("table release"), made[-1])
    many = pa.table({"age": np.zeros(2 * 10**7, np.int64)})
    pa.parquet.write_table(many, made[-1] / "synthetic.parquet")
    artifacts.seal(made[-1])
    made.append(tmp_path / "claimed bytes")
    shutil.copytree(folder_of("release"), made[-1])
    manifest = json.loads((made[-1] / artifacts.MANIFEST).read_text())
    manifest["files"]["points.npz"]["bytes"] = 2**45
    (made[-1] / artifacts.MANIFEST).write_text(json.dumps(manifest))
    arguments = [str(folder_of("table release")), *map(str, made)]
    run = subprocess.run([sys.executable, "-c", _MEMORY, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(run.stdout) < 64, "MiB"


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (1e-3, 1e-300),
        (1e6, 1e-9),
        *(pytest.param(*budget, marks=pytest.mark.slow) for budget in ((1e-6, 1e-3), (1e4, 1e-20))),
    ],
)
def test_extreme_budgets_are_loaded_again(tmp_path, epsilon, delta):
    """Noise beyond 2⁵³ is rounded when it becomes a float; ε cannot be larger than the largest one."""
    rng = np.random.default_rng(0)
    rows, points = rng.normal(size=(300, 2)), rng.uniform(-3, 3, (12, 2))
    table = pa.table({"age": rng.integers(0, 99, 300), "sex": rng.choice(["f", "m"], 300)})
    schema = Schema((Numeric("age", 0, 100, integer=True), Categorical("sex", ("f", "m"))))
    budget, kernel = PrivacyBudget(epsilon, delta), Gaussian(8.0)
    kept = []
    for public in (points if epsilon > 1e-4 else None, None):
        kept.append(measure(rows, kernel, public, budget=budget, bounds=BOUNDS, folder=tmp_path / f"{len(kept)}"))
    for secure in (True, False):
        kept.append(measure_table(table, schema, budget=budget, secure=secure, folder=tmp_path / f"{len(kept)}"))
    for number, measured in enumerate(kept):
        assert load(tmp_path / f"{number}").statement == measured.statement


def _forged(measured: Measurement, feature_map) -> Measurement:
    """A measurement that says, consistently, that its noise was for another map."""
    old = measured.noisy
    num_rows = old.mechanism.num_rows
    integers = feature_map.integers(num_rows)
    mechanism = secure_mechanism(integers, num_rows, BUDGET)
    coordinates = np.rint(old.coordinates / mechanism.grid) * mechanism.grid
    noisy = NoisyEmbedding(feature_map, coordinates, mechanism)
    statement = points_statement(noisy, measured.bounds, None, None)
    return dataclasses.replace(measured, noisy=noisy, statement=dict(statement))


def _smaller_cosines(feature_map):
    return dataclasses.replace(feature_map, least_cosine=0.9)


def _repeated_indices(feature_map):
    second = np.full(len(feature_map.indices), 1)
    return dataclasses.replace(
        feature_map, indices=feature_map.indices[second], amplitudes=feature_map.amplitudes[second]
    )


def _negative_indices(feature_map):
    indices, amplitudes = feature_map.indices.copy(), feature_map.amplitudes.copy()
    indices[-1], amplitudes[-1] = -indices[1], amplitudes[1]
    return dataclasses.replace(feature_map, indices=indices, amplitudes=amplitudes)


def _longer_basis(feature_map):
    """λmax is 16 rather than 1, in a direction that a vector of a known seed does not see."""
    return _stretched(feature_map, 3, 1.0)


def _slightly_longer_basis(feature_map):
    """λmax is 2.25 rather than the largest that may be said."""
    return _stretched(feature_map, 0.5, 1.0099)


def _stretched(feature_map, by, lambda_max):
    known, unit = (np.random.default_rng(seed).normal(size=feature_map.num_features) for seed in (0, 1))
    unit -= known * (unit @ known) / (known @ known)
    unit /= np.linalg.norm(unit)
    basis = (np.eye(len(unit)) + by * np.outer(unit, unit)) @ feature_map.basis
    norm = float(np.sqrt(np.square(basis).sum(axis=1).max())) * 1.0001
    return dataclasses.replace(feature_map, basis=basis, basis_norm=norm, lambda_max=lambda_max)


@pytest.mark.parametrize(
    ("name", "forge", "error"),
    [
        ("measurement of frequencies", _smaller_cosines, "least_cosine"),
        ("measurement on a lattice", _repeated_indices, "indices"),
        ("measurement on a lattice", _negative_indices, "indices"),
        ("release", _longer_basis, "basis: it is not an orthonormal basis for these points"),
        ("release", _slightly_longer_basis, "basis: it is not an orthonormal basis for these points"),
    ],
)
def test_a_map_cannot_claim_a_smaller_diameter(folder_of, tmp_path, name, forge, error):
    measured = Measurement.load(folder_of(name))
    _forged(measured, measured.noisy.feature_map).save(tmp_path / "same")
    Measurement.load(tmp_path / "same")
    _forged(measured, forge(measured.noisy.feature_map)).save(tmp_path / "forged")
    with pytest.raises(ReleaseError, match=error):
        Measurement.load(tmp_path / "forged")


def test_no_measurement_can_be_left_out(folder_of, tmp_path):
    """What remains is consistent, and has a smaller ρ than what was spent."""
    loaded = TableMeasurement.load(folder_of("table measurement"))
    for left in (1, 2):
        kept = dict(list(loaded.measured.items())[:left])
        budget = PrivacyBudget(loaded.statement["epsilon"], loaded.statement["delta"])
        statement = table_statement(loaded.schema, loaded.target, kept, budget, None)
        dataclasses.replace(loaded, measured=kept, statement=statement).save(tmp_path / f"{left}")
        with pytest.raises(ReleaseError, match=r"second measurement is not|third measurement is missing"):
            load(tmp_path / f"{left}")


def test_no_long_floats_are_read(folder_of, tmp_path):
    shutil.copytree(folder_of("release"), tmp_path / "copy")
    path = tmp_path / "copy" / "release.npz"
    arrays = artifacts.read_arrays(path.read_bytes())
    path.write_bytes(
        artifacts.write_arrays({k: v.astype("g") if v.dtype.kind == "f" else v for k, v in arrays.items()})
    )
    artifacts.seal(tmp_path / "copy")
    with pytest.raises(ReleaseError, match=r"float128|longdouble"):
        Release.load(tmp_path / "copy")


@pytest.mark.parametrize("name", [*(name for name in LOADERS if name != "generator"), _SLOW])
def test_kinds_are_told_apart(folder_of, name):
    kind = folders.open_folder(folder_of(name)).kind
    assert name.startswith(kind)
    assert type(load(folder_of(name))) is type(LOADERS[name](folder_of(name)))
    if kind != "generator":
        with pytest.raises(ReleaseError, match=r"holds (a|the) .*(release|measurement).*, not a generator"):
            GeneratorRelease.load(folder_of(name))
    if kind == "release":
        assert isinstance(Measurement.load(folder_of(name)), Measurement)


def test_arrays_take_their_names_from_the_file_that_wrote_them(folder_of):
    with folders.open_folder(folder_of("release")).arrays("points.npz") as arrays:
        assert sorted(arrays) == ["columns", "points", "seed", "weights"]
        assert all(isinstance(arrays[name], np.ndarray) for name in arrays)


def main() -> None:
    """Tries all mutants of all kinds of folders."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        _make_others(root)
        _make_generator(root)
        total, start = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name in LOADERS:
            tried, accepted = _try_all(name, root / name, root / f"{name} copy", 1)
            wrong = [label for label in accepted if not HARMLESS.match(label)]
            total += tried
            harmless = len(accepted) - len(wrong)
            print(f"{name}: {tried} mutants, {harmless} harmless, {len(wrong)} wrongly accepted {wrong}", flush=True)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) // 1024
    print(f"{total} mutants, each with its old and with a fitting digest; the peak memory grew by {grown} MiB")


if __name__ == "__main__":
    main()
