"""The list of all experiments: python -m experiments

Each is a program: python -m experiments.NAME --help
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator


def programs() -> Iterator[tuple[str, str]]:
    """The name and the first line of the documentation of each experiment, without importing any."""
    folder = pathlib.Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path != pathlib.Path(__file__) and "run_main(" in text and '__name__ == "__main__"' in text:
            place = path.parent if path.name == "__main__.py" else path.with_suffix("")
            words = ast.get_docstring(ast.parse(text)) or ""
            yield ".".join(("experiments", *place.relative_to(folder).parts)), words.split("\n")[0]


def main() -> None:
    """Prints the list."""
    for name, about in programs():
        print(f"python -m {name}\n    {about}")
    print("\nEach has --help, and --quick for a small run.")


if __name__ == "__main__":
    main()
