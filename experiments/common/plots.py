"""What pictures of results share. Pictures are drawn from JSON; nothing is computed for them."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.common.results import atomic_path

# Blue, orange, green of the colour-blind-safe Okabe-Ito palette, then the rest of it, for ε from small to large.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def pyplot() -> Any:
    """``matplotlib.pyplot`` without a display. It is imported here because only pictures need it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, outputs: Sequence[pathlib.Path]) -> pathlib.Path:
    """Writes a figure of Matplotlib to files, and closes it.

    Args:
      figure: the figure.
      outputs: one or more paths. The suffix of each says its format.

    Returns:
      The first path.
    """
    for output in outputs:
        with atomic_path(pathlib.Path(output)) as temporary:
            figure.savefig(temporary, dpi=160, metadata={"CreationDate": None} if temporary.suffix == ".pdf" else None)
    pyplot().close(figure)
    return outputs[0]
