"""Figures 1 and 2 of Balog et al. 2018. ``catalogue`` lists the figures; each is defined in a module of its own."""
