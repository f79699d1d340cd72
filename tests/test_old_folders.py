"""Folders that version 0.1 wrote before its packages were moved still load, and say the same.

They are in tests/data/folders_of_0.1, one of each kind, of made-up rows.
"""

import json
import pathlib

import numpy as np
import pytest

import kme_jax

FOLDERS = sorted((pathlib.Path(__file__).parent / "data" / "folders_of_0.1").iterdir())
KINDS = {
    "generator": ("generators", "GeneratorRelease"),
    "generator_measurement": ("generators", "GeneratorMeasurement"),
    "measurement_of_frequencies": ("points", "Measurement"),
    "measurement_on_a_lattice": ("points", "Measurement"),
    "release": ("points", "Release"),
    "table_measurement": ("table", "TableMeasurement"),
    "table_release": ("table", "TableRelease"),
}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_it_loads_and_says_the_same(folder, tmp_path):
    loaded = kme_jax.load(folder)
    product, name = KINDS[folder.name]
    assert (type(loaded).__module__.split(".")[1], type(loaded).__name__) == (product, name)
    written = json.loads((folder / "privacy.json").read_text())
    statement = loaded.statement
    assert statement["epsilon"] == written["epsilon"]
    assert statement["public_inputs"] == written["public_inputs"]
    assert [part["scale"] for part in statement["measurements"]] == [part["scale"] for part in written["measurements"]]
    loaded.save(tmp_path / "again")
    assert kme_jax.load(tmp_path / "again").statement["num_rows"] == written["num_rows"]


def test_one_of_each_kind():
    assert [folder.name for folder in FOLDERS] == sorted(KINDS)


@pytest.mark.long
def test_a_synthesis_of_an_old_measurement():
    folder = next(path for path in FOLDERS if path.name == "measurement_of_frequencies")
    synthetic = kme_jax.load(folder).synthesise(30)
    assert synthetic.sample.points.shape == (30, 2)
    assert np.isclose(synthetic.sample.weights.sum(), 1)
    assert (np.abs(synthetic.sample.points) <= 3).all()
