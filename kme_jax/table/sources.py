"""Where the rows of a table are: on this machine, or with an engine that sums parts of them elsewhere."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Protocol

from kme_jax.embedding import IntegerEmbedding
from kme_jax.partial import Task
from kme_jax.privacy.budget import ADD_REMOVE_PERSON, PrivacyBudget, check_budget
from kme_jax.table.encoding import TableEncoding
from kme_jax.table.readers import TableSource, open_table
from kme_jax.table.release import check_relation
from kme_jax.table.schema import Schema


class RowSource(Protocol):
    """A private table, as a release sees it: how many rows there are, and their sums. ``TableSource`` is one.

    Attributes:
      schema: of the columns.
      person: the name of the column with the ids of persons; None if every row is used.
      max_rows: the largest number of rows of a person that are used.
    """

    schema: Schema
    person: str | None
    max_rows: int

    @property
    def num_rows(self) -> int:
        """N, the number of rows that are used. SENSITIVE unless the table is released under replace_one."""
        ...

    @property
    def encoding(self) -> TableEncoding:
        """How rows become integers. Public."""
        ...

    def check_size(self) -> None:
        """Raises FileError if there are fewer than two rows. Never called if the number of rows is private."""
        ...

    def sum(self, task: Task, progress: Callable[[int], None] | None = None) -> IntegerEmbedding:
        """The exact sum over all rows that are used, as ``kme_jax.partial.merge`` returns it. SENSITIVE.

        Args:
          task: what is summed. Its encoding is :attr:`encoding`.
          progress: called with the number of rows done.

        Raises:
          ValueError: rows have changed since they were counted.
        """
        ...


def new_run() -> str:
    """A new name of a run, at random."""
    return secrets.token_hex(16)


def opened(source: Any, schema: Schema, budget: PrivacyBudget) -> RowSource:
    """The source, opened for a budget.

    Raises:
      ValueError: as for ``measure_table``, or the budget names no column of persons, or the source has others.
    """
    check_budget(budget)
    if budget.relation == ADD_REMOVE_PERSON and budget.person is None:
        raise ValueError(
            f"budget: name the column with the ids of persons: PrivacyBudget(..., {ADD_REMOVE_PERSON!r}, 5, 'id')"
        )
    check_relation(schema, budget.relation)
    if not isinstance(source, TableSource):
        return open_table(source, schema, person=budget.person, max_rows=budget.max_rows)
    if source.schema != schema:
        raise ValueError("source: it was opened with another schema; give the same schema to open_table and here")
    if (source.person, source.max_rows) != (budget.person, budget.max_rows):
        raise ValueError("source: it was opened for other persons, or another max_rows, than those of the budget")
    return source
