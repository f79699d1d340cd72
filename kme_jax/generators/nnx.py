"""flax, which only generators need: what is missing is said in one line that says how to install it."""

try:
    from flax import nnx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('generators need flax: pip install "kme_jax[generators]"', name="flax") from error

__all__ = ["nnx"]
