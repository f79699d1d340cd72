"""What a third party does with a release: estimates with intervals. All of it is post-processing."""

from kme_jax.analysis.bootstrap import Bootstrap, bootstrap
from kme_jax.analysis.estimates import Estimate
from kme_jax.analysis.tables import estimate

__all__ = ["Bootstrap", "Estimate", "bootstrap", "estimate"]
