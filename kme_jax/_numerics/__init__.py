"""Numerics, checks and small tools that all of the library shares. Not public."""
