"""Private rows, test rows and classifiers of each data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from experiments.common.dataset_rows import Dataset
from experiments.common.errors import InputError
from experiments.merf import classifiers, image_files, images, table_classifiers, table_files
from experiments.rivals.columns import Columns

_COUNT_SCALE = 100.0  # noise of the counts of the classes of Adult. It takes less than a hundredth of ε = 1.


@dataclasses.dataclass(frozen=True, repr=False)
class Task:
    """Rows to be released, and how they are judged.

    Attributes:
      name: of the data set.
      title: of the data set.
      columns: of rows.
      rows: private, float32 [N, columns].
      design: rows to what classifiers learn from, [n, F].
      test: the same of the test rows, [m, F].
      truth: their classes, [m].
      scores: trains and tests classifiers, see ``merf.classifiers.scores``.
      count_scale: noise of the counts of the classes that a GAN measures; 0 if classes are publicly known to be about
        equal.
      table: the rows as a table; None for images.
    """

    name: str
    title: str
    columns: Columns
    rows: np.ndarray
    design: Callable[[np.ndarray], np.ndarray]
    test: np.ndarray
    truth: np.ndarray
    scores: Callable[..., dict[str, dict[str, float]]]
    count_scale: float = 0.0
    table: Dataset | None = None


def load(name: str, data_dir: str, seed: int, validation: int) -> Task:
    """The task of a data set.

    Args:
      name: of the data set.
      data_dir: the folder of the files.
      seed: of a random split, if the data set has one.
      validation: private rows that are set aside, and take the place of the test rows.

    Raises:
      InputError: if files are missing, or not more rows are private than ``validation``.
    """
    return (
        _images(name, data_dir, validation) if name in image_files.NAMES else _table(name, data_dir, seed, validation)
    )


def _images(name: str, data_dir: str, validation: int) -> Task:
    data = image_files.load(name, data_dir)
    if validation:
        data = images.set_aside(data, validation)
    columns = Columns(image_files.SIDE**2, image_files.NUM_CLASSES, side=image_files.SIDE)
    test = data.test.astype(np.float32) / 255
    title = image_files.TITLES[name]
    return Task(name, title, columns, data.rows(), _pixels, test, data.test_labels, classifiers.scores)


def _pixels(rows: np.ndarray) -> np.ndarray:
    return rows[:, :-1]


def _table(name: str, data_dir: str, seed: int, validation: int) -> Task:
    if not data_dir:
        raise InputError(f"{name}: give --data_dir, a folder with a folder {name}")
    data = table_files.load(name, data_dir, seed)
    if validation:
        if validation >= data.private.num_rows:
            raise InputError(f"--validation must be below the {data.private.num_rows} private rows, got {validation}")
        kept = data.private.num_rows - validation
        data = dataclasses.replace(data, private=data.private.slice(0, kept), test=data.private.slice(kept))
    layout = table_files.Layout(data.schema, data.target)
    private, test = (layout.rows(data.schema.encode(rows)) for rows in (data.private, data.test))
    columns = Columns(len(layout.numbers), layout.num_labels, layout.categories)
    return Task(
        name, name.capitalize(), columns, private, layout.design, layout.design(test), layout.labels(test),
        table_classifiers.scores, _COUNT_SCALE, data,
    )  # fmt: skip
