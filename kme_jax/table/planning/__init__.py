"""The plan of a table release: which marginals of a private table are measured.

There are three measurements. Each one is planned from the noisy counts of those before it.

1. *Single columns*. The marginal of a column has a cell for each value, at most about a thousand, and fewer if there
   are few rows. It is split by the classes of the target, and it is measured without classes, too. The noise of a
   thousand cells adds up. So an ordered column of many values is also counted in sixteen segments (``cells``), and its
   mean and its mean square are measured without classes.
2. *Pairs of columns*. All pairs are measured, in a few bins of about equal counts. All triples are measured in halves,
   if N and the budget leave little noise.
3. *Some pairs*. The pairs that are furthest from independence in the second measurement are measured again in more
   bins, as long as this lowers the error. The mean product of two ordered columns is measured too. For columns of many
   values, the marginals of the bins are measured again, and cells that stand out are cut into parts. Triples that
   depend on each other in a way that pairs do not show are measured again, too. So are rare categories, which share
   bins in pairs: each by itself, together with the columns that depend most on it (``kme_jax.table.rare_fit``).

Bins, pairs and cells are chosen from noisy counts and public quantities alone. So the three measurements compose.

If the number of rows is private, another measurement comes first: of this number. A noisy count then replaces N
everywhere.
"""

from __future__ import annotations

from kme_jax.table.planning.bins import choose_bins
from kme_jax.table.planning.choices import (
    ERROR_OF_NOISE,
    association,
    choose_pairs,
    choose_triples,
    correlations,
    strong_pairs,
    triple_counts,
    triples_pay,
)
from kme_jax.table.planning.layout import (
    COUNT_SHARE,
    MOST_PRIVATE_ROWS,
    RARE_SHARES,
    SHARES,
    Largest,
    Layout,
    comparable_rho,
    largest_maps,
    shares,
    shares_of_all,
)
from kme_jax.table.planning.maps import (
    MOST_PARENTS,
    check_maps,
    coarse_map,
    count_map,
    is_of_rare,
    pairs_map,
    rare_size,
    singles_map,
    zoom_blocks,
)
from kme_jax.table.planning.noisy_sums import block_counts, map_of, narrow_moments, noisy_count, sigma
from kme_jax.table.planning.plan import MOST_CELLS, Plan, parts_of, rare_cells, wide_columns
from kme_jax.table.planning.singles import EVENLY, NUM_RAKES, Segments, Singles, class_sizes

__all__ = [
    "COUNT_SHARE",
    "ERROR_OF_NOISE",
    "EVENLY",
    "MOST_CELLS",
    "MOST_PARENTS",
    "MOST_PRIVATE_ROWS",
    "NUM_RAKES",
    "RARE_SHARES",
    "SHARES",
    "Largest",
    "Layout",
    "Plan",
    "Segments",
    "Singles",
    "association",
    "block_counts",
    "check_maps",
    "choose_bins",
    "choose_pairs",
    "choose_triples",
    "class_sizes",
    "coarse_map",
    "comparable_rho",
    "correlations",
    "count_map",
    "is_of_rare",
    "largest_maps",
    "map_of",
    "narrow_moments",
    "noisy_count",
    "pairs_map",
    "parts_of",
    "rare_cells",
    "rare_size",
    "shares",
    "shares_of_all",
    "sigma",
    "singles_map",
    "strong_pairs",
    "triple_counts",
    "triples_pay",
    "wide_columns",
    "zoom_blocks",
]
