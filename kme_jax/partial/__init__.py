"""Partial sums: step 1 in parts, on any number of machines.

Step 1 is a sum of integers, so parts of it are added in any order, and the release is the same to the last bit. A
``Task`` says what is summed. It is public. ``partial_sums`` sums some of the rows, and ``merge`` adds the results.

A partial holds exact sums of private rows. It is SENSITIVE, as the rows are: keep it where the rows are kept, and
delete it when the noisy result exists.

They need pyarrow: ``pip install "kme_jax[tables]"``.
"""

try:
    import pyarrow  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('partial sums need pyarrow: pip install "kme_jax[tables]"', name="pyarrow") from error

from kme_jax.partial.encoding import PointEncoding, RowEncoding, register_encoding
from kme_jax.partial.runs import RunError, RunFolder
from kme_jax.partial.sums import PARTIAL_SCHEMA, UNKNOWN, Partial, PartialError, combine, merge, partial_sums
from kme_jax.partial.task import Task

__all__ = [
    "PARTIAL_SCHEMA",
    "UNKNOWN",
    "Partial",
    "PartialError",
    "PointEncoding",
    "RowEncoding",
    "RunError",
    "RunFolder",
    "Task",
    "combine",
    "merge",
    "partial_sums",
    "register_encoding",
]
