"""Folders of releases: how they are written, checked and read."""

from kme_jax._numerics.registry import storable
from kme_jax.storage.folders import Kind, ReleaseError, register_kind

__all__ = ["Kind", "ReleaseError", "register_kind", "storable"]
