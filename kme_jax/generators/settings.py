"""How a generator is trained: the objective's settings, and how the training is cut into calls."""

from __future__ import annotations

import dataclasses
import math
from typing import cast

import jax
import optax
from jaxtyping import Float, Int

from kme_jax._numerics.precision import is_size
from kme_jax._numerics.short_repr import short_repr
from kme_jax.generators.networks import MOST_MEMBERS, Convolutional, Network
from kme_jax.privacy.budget import check_number

Array = jax.Array

_STEPS_AT_ONCE = 50  # steps in a piece of work. An entry of the trace is the mean over one piece.


@short_repr
@dataclasses.dataclass(frozen=True)
class Training:
    """Configuration of the training of a generator. It is public, and must be chosen without the private rows.

    Attributes:
      num_steps: steps of Adam in a cycle.
      num_cycles: largest number of cycles. Training ends after a cycle if ‖μ̃ − μ_G‖² is at most the square of the
        noise. This is the value for the private rows themselves (the discrepancy principle of inverse problems,
        Morozov 1966), so more steps would fit noise. Otherwise the learning rate starts again (warm restarts,
        Loshchilov & Hutter 2017). The condition may never hold, for example if the network cannot represent the rows,
        or if classes are taken to be equally frequent and are not.
      batch_size: approximate number of rows of a step. Every style of every class has the same number, at least two.
      learning_rate: at the start of a cycle.
      decay: factor of the learning rate after every ``decay_steps`` steps of a cycle; None for a cosine schedule that
        ends at zero.
      decay_steps: see ``decay``.
      unbiased: whether ‖μ_G‖² is estimated from pairs of different rows. The estimate is then unbiased, except that
        batch normalisation makes the rows of a batch depend on each other. The biased estimate ([H]) is larger: the
        mean of a batch is longer than μ_G, the more so the smaller the batch. Generated rows then vary less than the
        private rows.
      features_per_step: number of features in a step, two for each frequency. It is for a FourierMap of rows or of
        transformed rows, whose blocks of frequencies take turns. None for all features.
      borrow: whether rare classes borrow from the others, see :func:`train_generator`.
      num_generators: number of generators that are trained on the same noisy embedding, one after another, each from
        random parameters of its own. They become one generator, which mixes their rows in equal parts. What a single
        training adds by chance averages out, so classifiers often learn a little more from such rows. Training takes
        this many times as long.

    Examples:
      >>> from kme_jax.generators import Training
      >>> training = Training(num_steps=500, num_cycles=2)
      >>> round(float(training.learning_rate_at(0)), 4), round(float(training.learning_rate_at(250)), 4)
      (0.005, 0.0025)
    """

    num_steps: int = 1000
    num_cycles: int = 5
    batch_size: int = 500
    learning_rate: float = 5e-3
    decay: float | None = None
    decay_steps: int = 1
    unbiased: bool = True
    features_per_step: int | None = None
    borrow: bool = True
    num_generators: int = 1

    def __post_init__(self):
        for name in ("num_steps", "num_cycles", "batch_size", "decay_steps", "num_generators"):
            value = getattr(self, name)
            if not is_size(value):
                raise ValueError(f"{name} must be a whole number and at least 1, got {value}")
        if self.num_generators > MOST_MEMBERS:
            raise ValueError(f"num_generators must be at most {MOST_MEMBERS}, got {self.num_generators}")
        if not 0 < check_number("learning_rate", self.learning_rate) < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if self.decay is not None and not 0 < check_number("decay", self.decay) <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {self.decay}")
        if self.features_per_step is not None and (not is_size(self.features_per_step) or self.features_per_step % 2):
            raise ValueError(f"features_per_step must be even and at least 2, got {self.features_per_step}")

    def learning_rate_at(self, step: int | Int[Array, ""]) -> Float[Array, ""]:
        """The learning rate at a step, counted from 0 over all cycles."""
        if self.decay is None:
            within = optax.cosine_decay_schedule(self.learning_rate, self.num_steps)
        else:
            within = optax.exponential_decay(self.learning_rate, self.decay_steps, self.decay, staircase=True)
        with jax.numpy_dtype_promotion("standard"):  # optax divides whole numbers
            return cast(Array, within(step % self.num_steps))

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with the learning rates of :meth:`learning_rate_at`."""
        return optax.adam(cast(optax.Schedule, self.learning_rate_at))

    def pieces(self) -> list[int]:
        """Numbers of steps done after each piece of work of all cycles. Each piece has an entry in the trace."""
        within = [*range(_STEPS_AT_ONCE, self.num_steps, _STEPS_AT_ONCE), self.num_steps]
        return [cycle * self.num_steps + steps for cycle in range(self.num_cycles) for steps in within]

    def calls(self, most: int) -> list[int]:
        """Numbers of steps done after each call. A call has at most ``most`` steps, or is one piece of work.

        The calls of a cycle have about equal numbers of steps.
        """
        within = -(-self.num_steps // _STEPS_AT_ONCE)
        num_calls = -(-within // max(1, most // _STEPS_AT_ONCE))
        size = -(-within // num_calls)
        return [end for k, end in enumerate(self.pieces()) if (k % within + 1) % size == 0 or end % self.num_steps == 0]


@short_repr
@dataclasses.dataclass(frozen=True)
class CallSettings:
    """How a training is cut into calls. It changes results by rounding alone.

    Attributes:
      steps: number of steps in one call; None for what is fastest on the device.
      seconds_between_checkpoints: smallest time between two checkpoints, in seconds.
    """

    steps: int | None = None
    seconds_between_checkpoints: float = 20.0

    def steps_of(self, network: Network) -> int:
        """Number of steps in one call.

        An accelerator waits for the host between two calls, so a call has many steps. XLA on CPUs runs convolutions
        several times slower in a loop than outside, so a call has one step.
        """
        if self.steps is not None:
            return self.steps
        if jax.default_backend() != "cpu":
            return 500
        return 1 if isinstance(network, Convolutional) else _STEPS_AT_ONCE
