"""python -m kme_jax: the command kme-jax."""

from kme_jax.cli import run

if __name__ == "__main__":
    run()
