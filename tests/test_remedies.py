"""Refusals say what to do."""

import inspect
import pathlib

import numpy as np
import pyarrow as pa
import pytest

import kme_jax
from kme_jax import Ledger, PrivacyBudget, Spending, WeightedSample
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import LedgerError
from kme_jax.synthesis import joint_reduced_set, posterior_mean
from kme_jax.table import Categorical, Numeric, Schema, measure_table, open_table

FOLDER = pathlib.Path(__file__).parent / "data/folders_of_0.1"
SCHEMA = Schema((Numeric("age", 0, 99), Categorical("job", ("a", "b"))))
TABLE = pa.table({"age": [1, 2, 3], "job": ["a", "b", "a"]})
BUDGET = PrivacyBudget(1.0, 1e-3)


def _of_points():
    return kme_jax.load(FOLDER / "release").noisy  # of a SubspaceMap


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: WeightedSample(np.zeros((2, 1)), np.array([2.0, -1.0])).quantise(5, 0), "signed=False"),
        (lambda: posterior_mean(None, _of_points(), None), "adaptive_weights with points takes any map"),
        (lambda: joint_reduced_set(None, _of_points(), np.zeros((5, 2)), 3), "adaptive_weights with points"),
        (
            lambda: measure_table(TABLE, SCHEMA, budget=BUDGET, secure=False, spending=Spending(Ledger("l"), "d")),
            "leave spending out",
        ),
        (
            lambda: measure_table(open_table(TABLE, SCHEMA), Schema(SCHEMA.columns, True), budget=BUDGET),
            "give the same schema to open_table and here",
        ),
        (lambda: measure_table(TABLE, SCHEMA, budget=BUDGET, target="jobs"), "no column 'jobs', only age, job"),
        (lambda: open_table(TABLE.select(["age"]), SCHEMA), "lacks the schema's job: add it, or remove it from"),
        (
            lambda: kme_jax.load(FOLDER / "table_release").sample(5, where=["age<20", "age>30"]),
            "ask for fewer conditions",
        ),
        (lambda: measure_table(TABLE, list(SCHEMA.columns), budget=BUDGET), "expected a Schema, got a list"),
        (lambda: kme_jax.release_table(TABLE, "schema.json", budget=BUDGET), r"a str: write .* Schema.read\(PATH\)"),
        (lambda: kme_jax.release_table(TABLE, SCHEMA, budget=1.0), r"got 1.0: write PrivacyBudget\("),
        (lambda: measure_table(TABLE, SCHEMA, budget=BUDGET, spending="my.ledger"), "expected a Spending, got a str"),
        (lambda: Schema(SCHEMA.columns[0]), "expected a list of columns"),
        (lambda: Schema(["age"]), "expected a list of columns"),
        (lambda: Categorical("job", ()), "the list of categories is empty: list them, from public knowledge"),
        (lambda: SCHEMA.columns[1].code(None), "nullable=True allows missing cells"),
        (lambda: kme_jax.load(FOLDER / "release").sample.to_pandas(["x", "weight"]), "give other names"),
    ],
)  # fmt: skip
def test_the_remedy_is_said_in_one_line(call, remedy):
    with pytest.raises(ValueError, match=remedy) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_second_release_is_refused_with_the_argument(tmp_path):
    ledger, planned = Ledger(tmp_path / "ledger"), Composition.planned(BUDGET)
    ledger.spend("people", planned)
    with pytest.raises(LedgerError, match=r"to release it again, which adds to the total, use allow_repeat=True$"):
        Spending(ledger, "people").spend(planned)
    with pytest.raises(KeyboardInterrupt) as caught, ledger.recorded():
        raise KeyboardInterrupt
    assert "another try needs allow_repeat=True, and adds" in caught.value.__notes__[0]


def test_the_remedy_for_signed_weights_exists():
    assert inspect.signature(kme_jax.adaptive_weights).parameters["signed"].default is True
