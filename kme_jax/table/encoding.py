"""How rows of a table become rows of a ``TableMap``, for tasks of partial sums."""

from __future__ import annotations

import dataclasses

import numpy as np

from kme_jax._numerics.short_repr import short_repr
from kme_jax.partial import RowEncoding, register_encoding
from kme_jax.storage.formats.base import checked_names
from kme_jax.table.schema import Schema, check_schema


@register_encoding
@short_repr
@dataclasses.dataclass(frozen=True)
class TableEncoding(RowEncoding):
    """Rows of a table, as codes of the columns that are measured. If rows have weights, their levels are added.

    The type of a column has no influence on what a cell becomes, see ``kme_jax.table.columns``. So it may differ from
    part to part.

    Attributes:
      schema: of the columns.
      is_text: whether cells are still the text that somebody wrote, as in .csv files that were read as text. Otherwise
        two categories may not be the same number or time.

    Examples:
      >>> import pyarrow as pa
      >>> from kme_jax import Categorical, Numeric, Schema
      >>> from kme_jax.table import TableEncoding
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("rich", ("no", "yes"))))
      >>> TableEncoding(schema).rows(pa.record_batch({"age": ["30", "200"], "rich": ["yes", "no"]}))
      array([[ 30,   1],
             [110,   0]])
    """

    kind = "table"
    schema: Schema
    is_text: bool = False

    def __post_init__(self):
        check_schema(self.schema)
        if not self.is_text:
            self.schema.check_keys()

    @property
    def has_levels(self) -> bool:
        return self.schema.weight is not None

    def rows(self, batch):
        names = checked_names("the rows", batch.schema.names)
        if names != batch.schema.names:
            batch = batch.rename_columns(names)
        self.schema.check_fields(batch.schema)
        codes = self.schema.measured_codes(self.schema.encode(batch))
        if self.schema.weight is None:
            return codes
        levels = self.schema.weight.levels(batch.column(self.schema.weight.name))
        return np.concatenate([codes, levels[:, None]], axis=1)  # column after column in memory

    def to_json(self):
        return {"schema": self.schema.to_json(), "is_text": self.is_text}

    @classmethod
    def from_json(cls, document):
        if set(document) != {"schema", "is_text"} or not isinstance(document["is_text"], bool):
            raise ValueError("expected a schema, and whether cells are text")
        return cls(Schema.from_json(document["schema"]), document["is_text"])
