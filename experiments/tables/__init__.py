"""Releases of real tables: their utility, and how the cost of a release grows with the number of rows."""
