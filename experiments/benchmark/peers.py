"""Other software that computes the same, each with its fastest blocks of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark.machine import fastest, is_accelerator, seconds_of
from experiments.benchmark.task import Contender, Run
from kme_jax._numerics.precision import precision_of


class Peer(NamedTuple):
    """Ways to compute Σ_n k(z_m, x_n), or other sums, over blocks of rows.

    Attributes:
      ways: {name: function of the rows of a block that returns sums over them}.
      place: converts rows of NumPy to rows on the device, which the ways take.
      gather: converts sums over all blocks to an array of NumPy.
    """

    ways: dict[str, Callable[[Any], Any]]
    place: Callable[[np.ndarray], Any] = lambda rows: rows
    gather: Callable[[Any], np.ndarray] = np.asarray


def _scikit_learn(points: np.ndarray, gamma: float) -> Peer:
    """On the host's CPU, whichever device JAX uses."""
    from sklearn.metrics.pairwise import rbf_kernel

    return Peer({"rbf_kernel": lambda block: rbf_kernel(points, block, gamma=gamma).sum(axis=1).astype(np.float64)})


def _torch_device() -> str:
    import torch

    device = {"cpu": "cpu", "gpu": "cuda"}.get(jax.default_backend())
    if device is None or (device == "cuda" and not torch.cuda.is_available()):
        raise NotImplementedError(f"this PyTorch has no {jax.default_backend()} device")
    return device


def _pytorch(points: np.ndarray, gamma: float) -> Peer:
    """On the type of device that JAX uses."""
    import torch

    device = _torch_device()
    z = torch.as_tensor(points, device=device)

    def cdist(block):
        return torch.exp(-gamma * torch.cdist(z, block) ** 2).sum(dim=1).double()

    def expanded(block):
        exponent = torch.addmm(-gamma * block.square().sum(dim=1), z, block.T, alpha=2 * gamma)
        return exponent.sub_(gamma * z.square().sum(dim=1, keepdim=True)).exp_().sum(dim=1).double()

    place = functools.partial(torch.as_tensor, device=device)
    return Peer({"cdist": cdist, "expanded": expanded}, place, lambda sums: sums.cpu().numpy())


def _keops(points: np.ndarray, gamma: float) -> Peer:
    """On the type of device that JAX uses."""
    import pykeops
    import torch
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)
    device = _torch_device()
    z = LazyTensor(torch.as_tensor(points, device=device)[:, None, :])

    def sums(block, **options):
        squared = ((z - LazyTensor(block[None, :, :])) ** 2).sum(-1)
        return (-gamma * squared).exp().sum(dim=1, **options)[:, 0].double()

    ways = {"sum": sums}
    if device == "cuda":
        ways |= {name: functools.partial(sums, backend=name) for name in ("GPU_1D", "GPU_2D")}
    return Peer(ways, functools.partial(torch.as_tensor, device=device), lambda sums: sums.cpu().numpy())


def _jax_numpy(points: np.ndarray, gamma: float) -> Peer:
    """The plain expressions, jitted."""
    gamma = points.dtype.type(gamma)

    @jax.jit
    def differences(points, block):
        columns = (jnp.square(points[:, None, i] - block[None, :, i]) for i in range(points.shape[1]))
        return jnp.sum(jnp.exp(-gamma * sum(columns)), axis=1)

    @jax.jit
    def expanded(points, block):
        products = jnp.matmul(points, block.T, precision=jax.lax.Precision.HIGHEST)
        squares = jnp.sum(jnp.square(points), axis=1)[:, None] + jnp.sum(jnp.square(block), axis=1)[None]
        return jnp.sum(jnp.exp(gamma * (2 * products - squares)), axis=1)

    return peer_of_jax({"differences": differences, "expanded": expanded}, points)


def peer_of_jax(functions: dict[str, Callable[[Any, Any], Any]], points: Any) -> Peer:
    """A peer of jitted functions of (points, block of rows)."""

    def placed(array):
        with precision_of(array):
            return jnp.asarray(array)

    def way(function):
        def sums(block):
            with precision_of(block):
                return np.asarray(function(points, block), np.float64)

        return sums

    points = placed(points)
    return Peer({name: way(function) for name, function in functions.items()}, placed)


BuildPeer = Callable[[np.ndarray, float], Peer]
"""(points [M, d], γ) -> peer."""
PEERS: dict[str, BuildPeer] = {
    "scikit-learn": _scikit_learn,
    "pytorch": _pytorch,
    "keops": _keops,
    "jax.numpy": _jax_numpy,
}
ON_THE_HOST = ("scikit-learn",)


def _blocks() -> tuple[int, ...]:
    """Rows per block that are tried: the fastest is used."""
    return (10_000, 100_000) if is_accelerator() else (1000, 10_000)


def _blocked_mean(peer: Peer, way: str, rows: Any, block: int, *, on_device: bool) -> np.ndarray:
    parts = (rows[start : start + block] for start in range(0, len(rows), block))
    sums = sum(peer.ways[way](part if on_device else peer.place(part)) for part in parts)
    return peer.gather(sums) / len(rows)


def fastest_blocked(
    build: Callable[[], Peer],
    rows: np.ndarray,
    num_timings: int,
    limit: float,
    *,
    on_device: bool,
    first_rows: int = 1000,
) -> Contender:
    """The mean over rows by a peer, in its fastest way and with its fastest blocks.

    Trials on few rows find way and blocks. The number of rows is what half of the limit allows for all timings. The
    other half is for the trials, and for wrong estimates.

    Args:
      build: builds the peer.
      rows: [N, d], on the host.
      num_timings: number of timings. There is one more run, for the result.
      limit: seconds for everything.
      on_device: whether rows are placed on the device before a run. Otherwise each run places them block by block.
      first_rows: number of rows of the first trial.

    Raises:
      TimeoutError: if the limit is too short even for the rows of the first trial.
    """
    peer = build()
    settings = {f"{way}, blocks of {block}": (way, block) for way in peer.ways for block in _blocks()}
    placed = peer.place(rows) if on_device else rows

    def runs(num_rows: int) -> dict[str, Run]:
        return {
            name: functools.partial(_blocked_mean, peer, way, placed[:num_rows], block, on_device=on_device)
            for name, (way, block) in settings.items()
        }

    def drop_failing(num_rows: int) -> None:
        """Runs all settings once, which also compiles them. Settings that fail, for lack of memory say, are dropped.

        If all settings fail, the last error is raised.
        """
        for name, run in runs(num_rows).items():
            try:
                run()
            except RuntimeError:
                settings.pop(name)
                if not settings:
                    raise

    first = min(len(rows), first_rows)
    drop_failing(first)
    slowest = max(seconds_of(run) for run in runs(first).values())
    share = limit / 4 / (4 * len(settings)) / slowest  # four runs of each
    trial = max(first, min(len(rows), 2 * max(_blocks()), int(share * first)))
    drop_failing(trial)
    best = fastest(runs(trial))
    expected = min(seconds_of(runs(trial)[best]) for _ in range(2)) / trial
    possible = int(limit / 2 / (num_timings + 1) / expected)
    if possible < first:
        raise TimeoutError(f"over the limit of {limit:g} s")
    num_rows = min(len(rows), possible)
    return Contender(runs(num_rows)[best], best, None if num_rows == len(rows) else num_rows)
