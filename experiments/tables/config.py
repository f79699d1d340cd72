"""The configuration of the releases of tables."""

from __future__ import annotations

import dataclasses

from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.datasets import NAMES
from experiments.common.errors import InputError
from experiments.tables.live_peers import PEERS, has_peers
from kme_jax.privacy.budget import ADD_REMOVE, RELATIONS, REPLACE_ONE


@dataclasses.dataclass(frozen=True)
class TablesConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag("", "Folder with a folder for each data set, such as adult/adult.data.gz.")
    datasets: tuple[str, ...] = flag(
        ("adult", "adult_pgm", "intrusion"), f"What to release, of {', '.join(NAMES)}.", quick=("adult",)
    )
    epsilons: tuple[float, ...] = flag((0.1, 1.0, 10.0), "Privacy levels ε.", quick=(1.0,))
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    relation: str = flag(REPLACE_ONE, "Which databases are neighbours.", choices=RELATIONS)
    num_seeds: int = flag(5, "Seeds: splits, and releases for each ε.", quick=1)
    more_rows: int = flag(1, "Releases also have so many times as many rows as the private table; 1 for no others.")
    secure: bool = flag(True, "Secure noise; without it simulated noise, which is reproducible and not private.")
    peers: tuple[str, ...] = flag(
        (), f"Other systems on the same splits, of {', '.join(PEERS)}. They are private under add_remove alone."
    )
    peer_python: str = flag("", "The Python of an environment with dpmm. It needs other versions of NumPy than JAX.")
    peer_epsilons: tuple[float, ...] = flag((1.0,), "Those of the privacy levels at which other systems run.")
    peer_seeds: int = flag(1, "Seeds with which other systems run: the first ones.")
    peer_minutes: float = flag(15.0, "Time limit for each release of another system.")
    output_dir: str = flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.data_dir:
            raise InputError("--data_dir is missing: give the folder with a folder for each data set")
        for name in ("datasets", "epsilons"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"--{name} must be one or more, and different, got {values}")
        if unknown := set(self.datasets) - set(NAMES):
            raise InputError(f"--datasets: no {min(unknown)!r}; there are {', '.join(NAMES)}")
        if self.relation not in RELATIONS:
            raise InputError(f"--relation must be {' or '.join(RELATIONS)}, got {self.relation}")
        at_least(self, 1, "num_seeds", "more_rows")
        if self.peers:
            self._validate_peers()
        valid_budgets(self.epsilons, self.delta)

    def _validate_peers(self) -> None:
        if unknown := set(self.peers) - set(PEERS):
            raise InputError(f"--peers: no {min(unknown)!r}; there are {', '.join(PEERS)}")
        if self.relation != ADD_REMOVE:
            raise InputError("--peers: the other systems are private under --relation=add_remove alone")
        if not has_peers(self.peer_python):
            raise InputError("--peer_python: give the Python of an environment with dpmm; pip install dpmm makes one")
        if unknown := set(self.peer_epsilons) - set(self.epsilons):
            raise InputError(f"--peer_epsilons: {min(unknown):g} is not one of --epsilons")
        at_least(self, 1, "peer_seeds")
        if not self.peer_minutes > 0:
            raise InputError(f"--peer_minutes must be above 0, got {self.peer_minutes}")
