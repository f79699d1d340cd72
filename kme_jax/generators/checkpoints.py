"""Checkpoints of a long training in a folder, by orbax. Training continues from them after an interruption."""

from __future__ import annotations

import hashlib
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


class Checkpoints:
    """The checkpoints of one training. Only the last is kept.

    Args:
      folder: for the checkpoints. It is created if it does not exist.
      inputs: of the training: text, random keys and arrays. A checkpoint of a training with other inputs is refused.
      seconds_between: smallest time between two checkpoints, except for the last one.

    Raises:
      ValueError: the folder is a file, or cannot be written.
    """

    def __init__(self, folder: str | os.PathLike, inputs: Sequence[Any], seconds_between: float):
        import orbax.checkpoint as ocp  # imported here because this takes a second

        self._ocp, self._folder = ocp, pathlib.Path(folder).resolve()
        self._fingerprint, self._kept_at = _fingerprint(inputs), time.monotonic()
        self._seconds_between = seconds_between
        options = ocp.CheckpointManagerOptions(max_to_keep=1, create=True, enable_async_checkpointing=False)
        if self._folder.exists() and not self._folder.is_dir():
            raise ValueError(f"{self._folder}: is a file, and checkpoints need a folder")
        try:
            self._manager = ocp.CheckpointManager(self._folder, options=options)
        except OSError as error:
            raise ValueError(f"{self._folder}: cannot be written ({error.strerror or error})") from error

    def latest(self, state: Any) -> tuple[int, list[float], Any]:
        """The last checkpoint: steps done, the trace of the objective, and the state.

        Args:
          state: a state of the same structure. It is returned, with 0 steps, if there is no checkpoint.

        Raises:
          ValueError: the checkpoint is of another training, or damaged.
        """
        done = self._manager.latest_step()
        if done is None:
            return 0, [], state
        leaves, structure = jax.tree.flatten(state)
        args = self._ocp.args
        try:
            (about,) = self._manager.restore(done, args=args.Composite(about=args.JsonRestore())).values()
            if about["fingerprint"] != self._fingerprint:
                raise ValueError(f"{self._folder}: is of another training; choose another folder, or remove it")
            template = args.Composite(state=args.StandardRestore([np.asarray(leaf) for leaf in leaves]))
            (restored,) = self._manager.restore(done, args=template).values()
        except (OSError, KeyError, TypeError) as error:
            raise ValueError(f"{self._folder}: is damaged ({error}); remove it") from error
        return done, about["objective"], jax.tree.unflatten(structure, [jax.numpy.asarray(leaf) for leaf in restored])

    def keep(self, done: int, objective: list[float], state: Any, *, last: bool = False) -> None:
        """Keeps a state if it is the last one, or if enough time has passed since the checkpoint before."""
        if not last and time.monotonic() - self._kept_at < self._seconds_between:
            return
        args = self._ocp.args
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
        about = {"fingerprint": self._fingerprint, "objective": objective}
        self._manager.save(done, args=args.Composite(state=args.StandardSave(leaves), about=args.JsonSave(about)))
        self._manager.wait_until_finished()
        self._kept_at = time.monotonic()


def _fingerprint(inputs: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for value in inputs:
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else np.asarray(value)
        digest.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
        digest.update(b"\0")
    return digest.hexdigest()
