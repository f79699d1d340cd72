"""The figures that ``python -m experiments.figures`` regenerates. A new figure is one line here and one module."""

from __future__ import annotations

from experiments import figure1, figure2

FIGURES = {figure.name: figure for figure in (figure1.FIGURE, figure2.FIGURE)}
