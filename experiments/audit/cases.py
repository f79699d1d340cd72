"""Random neighbouring tables in containers of many kinds, for an attack on how cells become codes.

A case is a schema, a list of rows of Python cells, one row that replaces another one, and a container. The same call
puts both tables into the container. Whatever the container makes of them, only the codes of that row may differ, and
the library may refuse neither table if it accepts the other one. ``num_violations`` counts the cases where this fails,
for the library's own encoder or for the former one, ``old_encoder``, whose defect it has to detect.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas

from experiments.audit.cells import FAMILIES, MILD_CELLS, ODD_CELLS, choice, random_bool, random_cells, random_column
from experiments.audit.containers import CONTAINERS, Container, columns_of
from experiments.audit.encoders import Encoder, new_encoder
from kme_jax import Bounds, LatticeMap, integer_embedding
from kme_jax.embedding import integer_embedding_of_batches
from kme_jax.kernels import Gaussian
from kme_jax.table import Schema
from kme_jax.table import planning as plans
from kme_jax.table.release import binnings_and_target


@dataclasses.dataclass(frozen=True)
class Case:
    """Two neighbouring tables, and their container.

    Attributes:
      schema: of both tables.
      rows: one list of cells for each row.
      place: index of the row that is replaced.
      row: the row that replaces it.
      container: a name of ``CONTAINERS``.
    """

    schema: Schema
    rows: list[list[Any]]
    place: int
    row: list[Any]
    container: str

    @property
    def neighbour(self) -> list[list[Any]]:
        """The rows with the other one in its place."""
        return [self.row if i == self.place else row for i, row in enumerate(self.rows)]


def random_case(rng: np.random.Generator, containers: Sequence[str] = tuple(CONTAINERS)) -> Case:
    """A case of one to three columns and three to nine rows. In half of the cases the other row has no cell that a
    container with types of its own would refuse.
    """
    columns = tuple(random_column(rng, f"x{i}") for i in range(int(rng.integers(1, 4))))
    num_rows = int(rng.integers(3, 10))
    rows = [list(row) for row in zip(*(random_cells(rng, c, num_rows) for c in columns), strict=True)]
    place, mild = int(rng.integers(num_rows)), random_bool(rng)
    row = list(rows[place])
    for j in range(len(columns)):
        if j == 0 or random_bool(rng):
            other = rows[int(rng.integers(num_rows))][j]
            row[j] = choice(rng, (other, *MILD_CELLS) if mild else ODD_CELLS)
    return Case(Schema(columns), rows, place, row, choice(rng, containers))


def _crashes_pyarrow(cells: list[Any]) -> bool:
    """Whether there are both a time and a number of NumPy, with which pyarrow 26 crashes."""
    scalars = [cell for cell in cells if isinstance(cell, np.generic)]
    times = [isinstance(cell, np.datetime64 | np.timedelta64) for cell in scalars]
    return any(times) and not all(times)


def _built(container: Container, rows: list[list[Any]], schema: Schema, folder: pathlib.Path) -> Any:
    """The table, or None where the container refuses such cells."""
    if any(map(_crashes_pyarrow, columns_of(rows))):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return container(rows, schema, folder)
    except Exception:
        return None


def _totals(codes: np.ndarray, schema: Schema) -> np.ndarray:
    """Σ q(x_n) of the first measurement of a release of such a table."""
    binnings, _ = binnings_and_target(schema, None)
    feature_map = plans.singles_map(plans.Layout(tuple(binnings), -1, -1))
    half = len(codes) // 2
    batches = (part.astype(np.float64) for part in (codes[:half], codes[half:]) if len(part))
    return integer_embedding_of_batches(feature_map, batches, len(codes)).total


def is_violated(case: Case, folder: pathlib.Path, encoder: Encoder = new_encoder) -> bool | None:
    """Whether the case shows a defect.

    A defect is that another row has other codes, that the integer sums differ by more than the integers of the two
    rows, or that the library refuses one of the tables.

    Args:
      case: the tables.
      folder: where files are written.
      encoder: the encoder that is attacked.

    Returns:
      None if the container refuses one of the tables, so that there is nothing to compare.
    """
    container, codes_of_tables = CONTAINERS[case.container], []
    for rows in (case.rows, case.neighbour):
        table = _built(container, rows, case.schema, folder)
        if table is None:
            return None
        try:
            codes = encoder(table, case.schema)
        except Exception:
            return True
        if len(codes) != len(rows):  # a .csv file has no row where a line is empty
            return None
        codes_of_tables.append(codes)
    first, second = codes_of_tables
    same = np.delete(np.arange(len(first)), case.place)
    if not np.array_equal(first[same], second[same]):
        return True
    one = slice(case.place, case.place + 1)
    moved = _totals(second, case.schema) - _totals(first, case.schema)
    return not np.array_equal(moved, _totals(second[one], case.schema) - _totals(first[one], case.schema))


_POINTS = LatticeMap.from_box(Gaussian(0.5), [0.0, 0.0], [1.0, 1.0])
_NUMBER_FAMILIES = ("bool", "int", "float", "long", "digits", "words", "decimal", "numpy", "complex", "dates")
POINT_CONTAINERS: dict[str, Callable[[list[list[Any]]], Any]] = {
    "lists": lambda rows: rows,
    "array": np.array,
    "array of objects": lambda rows: np.array(rows, object),
    "DataFrame": lambda rows: pandas.DataFrame(rows),
    "nullable DataFrame": lambda rows: pandas.DataFrame(rows).convert_dtypes(),
}


def is_violated_by_points(rng: np.random.Generator) -> bool | None:
    """As :func:`is_violated`, for a random table of numbers that the points product reads."""
    family = FAMILIES[choice(rng, _NUMBER_FAMILIES)]
    num_rows = int(rng.integers(2, 7))
    rows = [[choice(rng, family), choice(rng, FAMILIES["float"])] for _ in range(num_rows)]
    other = [[choice(rng, ODD_CELLS), rows[0][1]], *rows[1:]]
    bounds = choice(rng, [None, Bounds.create([-1.0, 0.0], [50.0, 2.0])])
    build = choice(rng, list(POINT_CONTAINERS.values()))
    both = []
    for table in (rows, other):
        container = _built(lambda cells, *_: build(cells), table, None, None)
        if container is None or (isinstance(container, np.ndarray) and container.ndim != 2):  # from lists in cells
            return None
        both.append(container)
    first_rows = [rows[:1] if isinstance(rows, list | np.ndarray) else rows.iloc[:1] for rows in both]
    try:
        totals = [integer_embedding(_POINTS, rows, bounds=bounds).total for rows in (*both, *first_rows)]
    except ValueError:
        return True
    return not np.array_equal(totals[1] - totals[0], totals[3] - totals[2])


def num_violations(
    num_cases: int,
    seed: int,
    *,
    encoder: Encoder = new_encoder,
    containers: Sequence[str] = tuple(CONTAINERS),
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, int]:
    """Counts violations in random cases: {"violations", "compared", "drawn"}, numbers of cases.

    Args:
      num_cases: number of cases that are compared. If the encoder is the library's, one in twenty is of the points
        product.
      seed: of the cases.
      encoder: the encoder that is attacked.
      containers: names of ``CONTAINERS``.
      progress: called with (cases done, cases in all).
    """
    rng = np.random.default_rng(seed)
    drawn = compared = violations = 0
    with tempfile.TemporaryDirectory() as name:
        while compared < num_cases:
            if encoder is new_encoder and drawn % 20 == 0:
                violated = is_violated_by_points(rng)
            else:
                violated = is_violated(random_case(rng, containers), pathlib.Path(name), encoder)
            drawn += 1
            if violated is not None:
                compared, violations = compared + 1, violations + violated
                progress(compared, num_cases)
    return {"violations": violations, "compared": compared, "drawn": drawn}
