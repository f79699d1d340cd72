"""Our generator for a table: a public rule for features, network and training.

The rule sees the schema alone. Numbers are in [0, 1] by the public bounds, and a category is one-hot.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from experiments.common.errors import InputError, input_errors
from experiments.merf import release
from experiments.merf.table_files import Layout
from experiments.merf.table_published import Limits, Settings
from kme_jax import FourierMap, PrivacyBudget
from kme_jax._numerics.precision import Progress
from kme_jax.feature_maps import LabelledMap, MixedMap
from kme_jax.generators.networks import MLP
from kme_jax.generators.settings import Training
from kme_jax.kernels import GaussianSum
from kme_jax.table.columns import Numeric


@dataclasses.dataclass(frozen=True)
class Rule:
    """How DP-MERF is run on a table.

    Attributes:
      scales: γ of the kernel of all numbers, as multiples of 6/d: rows that are uniform in [0, 1] are at a mean square
        distance of d/6.
      single_scales: the same for the kernels of single columns, as multiples of 6. Empty for none.
      single_weight: of the kernels of single columns together; the others have the rest.
      most_single: largest d with kernels of single columns. With more columns, each would have a few frequencies only.
      num_features: J.
      orthogonal: see ``FourierMap``.
      widths: of the hidden layers.
      code: numbers in the latent code.
      styles: see ``Network``.
      training: of the generator. Its cycles are short, so that a table of few rows is not fitted down to its noise.
      log_from: counts of so many values from 0, and more, enter on a logarithmic scale; 0 for none.
    """

    scales: tuple[float, ...] = (1.0, 2.0, 4.0)
    single_scales: tuple[float, ...] = (1.0, 16.0, 256.0)
    single_weight: float = 0.5
    most_single: int = 50
    num_features: int = 1000
    orthogonal: bool = True
    widths: tuple[int, ...] = (200, 200)
    code: int = 10
    styles: int = 16
    training: Training = dataclasses.field(default_factory=lambda: Training(num_steps=100, num_cycles=30))
    log_from: int = 1000

    def features(self, key: jax.Array, layout: Layout) -> LabelledMap:
        """ψ, from the schema alone."""
        dim = len(layout.numbers)
        if not dim:
            raise InputError("a table without numbers has no frequencies: release it with release_table")
        gammas = [np.full(dim, scale * 6 / dim) for scale in self.scales]
        weights = [1 / len(gammas)] * len(gammas)
        if self.single_scales and dim <= self.most_single:
            weights = [weight * (1 - self.single_weight) for weight in weights]
            single = [scale * 6 * np.eye(dim)[j] for scale in self.single_scales for j in range(dim)]
            gammas, weights = gammas + single, weights + [self.single_weight / len(single)] * len(single)
        kernel = GaussianSum(np.stack(gammas), np.asarray(weights))
        fourier = FourierMap.from_kernel(key, kernel, self.num_features, dim, orthogonal=self.orthogonal)
        features = MixedMap(fourier, layout.categories) if layout.categories else fourier
        return LabelledMap(features, layout.num_labels)

    def scaled(self, layout: Layout, rows: np.ndarray) -> np.ndarray:
        """Rows with wide counts on the logarithmic scale of ``log_from``, which is again from 0 to 1."""
        rows = rows.copy()
        for j, last in self._counts(layout).items():
            rows[:, j] = np.log1p(rows[:, j].astype(np.float64) * last) / np.log1p(last)
        return rows

    def unscaled(self, layout: Layout, rows: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`scaled`."""
        rows = rows.copy()
        for j, last in self._counts(layout).items():
            rows[:, j] = np.expm1(rows[:, j].astype(np.float64) * np.log1p(last)) / last
        return rows

    def _counts(self, layout: Layout) -> dict[int, int]:
        """Columns of rows that are wide counts, and the number of their steps."""
        columns = [layout.schema.columns[j] for j in layout.numbers]
        return {
            place: column.num_values - 1
            for place, column in enumerate(columns)
            if isinstance(column, Numeric) and column.lower == 0 and column.num_values >= self.log_from > 0
            and (column.integer or column.step is not None)
        }  # fmt: skip

    def release(
        self,
        layout: Layout,
        private: np.ndarray,
        budget: PrivacyBudget,
        seed: int,
        num_rows: int,
        progress: Progress | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Codes of synthetic rows [num_rows, C] with the released shares of the classes, and entries of a record.

        Noise is simulated.

        Args:
          layout: of the rows.
          private: codes of the private rows, [N, C].
          budget: (ε, δ).
          seed: of noise, frequencies, network and samples.
          num_rows: of the synthetic rows.
          progress: called with (steps done, steps).
        """
        keys = jax.random.split(jax.random.key(seed), 3)
        sums = release.mean_of(self.features(keys[0], layout), self.scaled(layout, layout.rows(private)))
        with input_errors():
            measured = release.Privacy(class_counts=True).measure(keys[1], sums, budget)
        network = MLP(widths=self.widths, code=self.code, styles=self.styles)
        generator = release.train(keys[2], measured, network, self.training, (0.0, 1.0), progress=progress)
        rows = generator.sample(num_rows, seed=seed)
        facts = {"is_private": True, "shares": np.asarray(generator.shares).tolist()}
        facts["below_noise"] = list(generator.report.below_noise)
        return layout.codes(self.unscaled(layout, rows)), facts | release.report(generator, measured)


RULE = Rule()


def made_private(settings: Settings, num_rows: int, layout: Layout, limits: Limits) -> Rule:
    """The authors' settings with the faults of their privacy mended, as a rule.

    Numbers are scaled by public bounds, the length is that of rows that are uniform between the bounds, and categories
    are one-hot. Sizes, frequencies, the biased objective and the network's widths are the authors'. Noise is that of
    our generator, whose budget is divided better.
    """
    sizes = settings.cut(num_rows, limits)
    dim = len(layout.numbers) + len(layout.categories)
    training = Training(
        num_steps=sizes.num_steps, num_cycles=1, batch_size=sizes.batch_size, learning_rate=1e-2, decay=1.0,
        unbiased=False, borrow=False,
    )  # fmt: skip
    return Rule(
        scales=(0.5,), single_scales=(), num_features=sizes.num_features, orthogonal=False, widths=(4 * dim, 2 * dim),
        styles=0, training=training, log_from=0,
    )  # fmt: skip
