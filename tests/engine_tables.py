"""Tables for the tests of engines, and what a release of them on one machine gives."""

import numpy as np
import pandas as pd

from kme_jax import Categorical, Datetime, Numeric, PrivacyBudget, Schema, Weight, measure_table

SCHEMA = Schema(
    (
        Numeric("age", 0, 110, integer=True),
        Numeric("income", 0, 1e6, nullable=True),
        Categorical("job", ("a", "b", "c"), nullable=True),
        Datetime("since", "2020-01-01", "2025-12-31"),
        Categorical("rich", ("no", "yes")),
    ),
    dropped=("note",),
)
WEIGHTED = Schema((*SCHEMA.columns, Weight("stands for", 3)), dropped=("note",))
RELATIONS = ("replace_one", "add_remove")


def people(num_rows=700, seed=0):
    """A DataFrame with missing cells, cells beyond bounds, and labels that are in no schema."""
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2019-06-01") + pd.to_timedelta(rng.integers(0, 2600, num_rows), unit="D")
    frame = pd.DataFrame(
        {
            "age": rng.integers(10, 130, num_rows),
            "income": np.where(rng.random(num_rows) < 0.1, np.nan, rng.gamma(2, 3e4, num_rows)),
            "job": rng.choice(["a", "b", "c", "pilot"], num_rows),
            "since": days.astype("datetime64[us]"),
            "note": "x",
            "rich": rng.choice(["no", "yes"], num_rows),
        }
    )
    frame.loc[::7, "job"] = None
    return frame


def budget(relation="replace_one"):
    return PrivacyBudget(1.0, 1e-5, relation)


def measured(source, schema=SCHEMA, relation="replace_one", **options):
    """The coordinates of all measurements. Their noise is simulated, so equal sums give equal coordinates."""
    options = {"target": "rich", "secure": False, "budget": budget(relation)} | options
    found = measure_table(source, schema, **options).measured
    return {name: noisy.coordinates for name, noisy in found.items()}


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, coordinates in expected.items():
        np.testing.assert_array_equal(found[name], coordinates)
