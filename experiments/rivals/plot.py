"""Sample sheets of experiments.rivals."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from experiments.common.plots import pyplot, save
from experiments.merf import image_files
from experiments.rivals.config import SOURCES
from experiments.rivals.report import mean_score


def draw(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws ten images of each class, for each data set of images and each source of the first seed that has them.

    Args:
      inputs: JSON results.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.

    Raises:
      ValueError: no result has images.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    drawn = []
    for result in results:
        cells = {cell["source"]: cell for cell in reversed(result["cells"]) if "sheet" in cell}
        if cells:
            drawn.append((result, [cells[source] for source in SOURCES if source in cells]))
    if not drawn:
        raise ValueError("no result has images to draw")
    columns = max(len(cells) for _, cells in drawn)
    figure, all_axes = pyplot().subplots(
        len(drawn), columns, figsize=(3 * columns, 3.3 * len(drawn)), squeeze=False, layout="constrained"
    )
    for row, (result, cells) in zip(all_axes, drawn, strict=True):
        for axes in row:
            axes.axis("off")
        for axes, cell in zip(row, cells, strict=False):
            pixels = image_files.unpack(cell["sheet"])
            side = pixels.shape[1]
            grid = pixels.reshape(10, -1, side, side).transpose(0, 2, 1, 3).reshape(10 * side, -1)
            axes.imshow(grid, cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")
            title = f"{image_files.TITLES[result['config']['dataset']]}, {SOURCES[cell['source']]}"
            axes.set_title(f"{title}\naccuracy {mean_score(cell, 'accuracy'):.3f}", fontsize=9)
    config = drawn[0][0]["config"]
    figure.suptitle(
        f"ε = {config['epsilon']:g}, δ = {config['delta']:g}; a row for each class; accuracy: mean of "
        f"{len(config['classifiers'])} classifiers",
        fontsize=9,
    )
    return save(figure, outputs)
