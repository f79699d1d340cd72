"""Where the rows of a table are: on this machine, or with an engine that sums parts of them elsewhere."""

from __future__ import annotations

import abc
from collections.abc import Callable

from kme_jax.embedding import IntegerEmbedding
from kme_jax.partial import Task
from kme_jax.storage.files import FileError
from kme_jax.table.encoding import TableEncoding
from kme_jax.table.schema import Schema


class RowSource(abc.ABC):
    """A private table as a release sees it: how many rows there are, and their sums.

    Attributes:
      label: the path, or another name of the table, for errors.
      schema: of the columns.
      is_text: whether cells are still the text that somebody wrote.
      person: the name of the column with the ids of persons; None if every row is used.
      max_rows: the largest number of rows of a person that are used.
      num_rows: N, the number of rows that are used. SENSITIVE unless the table is released under replace_one.
    """

    label: str
    schema: Schema
    is_text: bool
    person: str | None
    max_rows: int
    num_rows: int

    @property
    def encoding(self) -> TableEncoding:
        """How rows become integers. Public."""
        return TableEncoding(self.schema, self.is_text)

    def check_size(self) -> None:
        """Raises FileError if there are fewer than two rows. Never called if the number of rows is private."""
        if self.num_rows < 2:
            raise FileError(f"{self.label}: expected at least 2 rows, got {self.num_rows}")

    @abc.abstractmethod
    def sum(self, task: Task, progress: Callable[[int], None] | None = None) -> IntegerEmbedding:
        """The exact sum over all rows that are used, as ``kme_jax.partial.merge`` returns it. SENSITIVE.

        Args:
          task: what is summed. Its encoding is :attr:`encoding`.
          progress: called with the number of rows done.

        Raises:
          ValueError: rows have changed since they were counted.
        """
