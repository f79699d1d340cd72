import itertools

import numpy as np
import pytest

from kme_jax.table.columns import Categorical, Numeric
from kme_jax.table.marginals import means, total_variation
from kme_jax.table.schema import Schema

SCHEMA = Schema(
    (
        Categorical("colour", ("red", "green", "blue"), nullable=True),
        Numeric("size", 0, 9, integer=True, nullable=True),
        Numeric("wealth", 0, 999, integer=True, nullable=True),
    )
)


def _codes(rng, num_rows):
    return np.stack([rng.integers(0, column.num_codes, num_rows) for column in SCHEMA.columns], axis=1)


def _by_definition(first, second, columns):
    def cell(row):
        # 1000 values are cut into 64 cells; code 1000 is missing.
        return tuple(row[j] if j != 2 else ("missing" if row[j] == 1000 else row[j] * 64 // 1000) for j in columns)

    rows, others = [cell(row) for row in first], [cell(row) for row in second]
    return sum(abs(rows.count(c) / len(rows) - others.count(c) / len(others)) for c in {*rows, *others}) / 2


def test_total_variation_is_that_of_its_definition(rng):
    first, second = _codes(rng, 60), _codes(rng, 45)
    found = total_variation(SCHEMA, first, second)
    assert len(found) == 3 + 3 + 1
    for order in (1, 2, 3):
        for columns in itertools.combinations(range(3), order):
            expected = _by_definition(first.tolist(), second.tolist(), columns)
            assert found[tuple(SCHEMA.names[j] for j in columns)] == pytest.approx(expected)
    assert means(found)["1"] == pytest.approx(np.mean([found[name,] for name in SCHEMA.names]))
    assert set(total_variation(SCHEMA, first, first).values()) == {0.0}


def test_of_many_columns_some_sets_are_drawn(rng):
    schema = Schema(tuple(Categorical(f"c{j}", ("a", "b")) for j in range(20)))  # 1140 sets of three
    codes = rng.integers(0, 2, (50, 20))
    found = total_variation(schema, codes, 1 - codes)
    assert found == total_variation(schema, codes, 1 - codes)
    assert sum(len(names) == 3 for names in found) == 1000
    assert set(means(found)) == {"1", "2", "3"}
    assert set(means(total_variation(Schema(schema.columns[:2]), codes[:, :2], codes[:, :2]))) == {"1", "2"}


@pytest.mark.long
def test_columns_of_many_categories(rng):
    """A table of counts of all sets of three would have 6 · 10¹⁰ cells."""
    schema = Schema(tuple(Categorical(name, tuple(map(str, range(4000)))) for name in "abc"))
    first = rng.integers(0, 4000, (50, 3))
    second = np.concatenate([first[:30], 3999 - first[:20]])
    assert total_variation(schema, first, second)["a", "b", "c"] == pytest.approx(0.4)
