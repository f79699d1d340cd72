"""Progress bars. Long work calls ``progress(done, total)``; a bar is shown if the caller gives True instead."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from kme_jax._numerics.precision import Progress

_P = ParamSpec("_P")
_R = TypeVar("_R")
_FORMAT = "{l_bar}{bar:24}| {elapsed}<{remaining}"
_FORMAT_BEFORE = "{desc}"  # while nothing is done yet, a bar would only show 0 %


@contextlib.contextmanager
def progress_bar(name: str, *, only_on_terminals: bool = False) -> Iterator[Progress]:
    """A progress bar of tqdm, which suits a notebook or a terminal. Until something is done it says "compiling".

    Args:
      name: the name of the work, which the bar shows.
      only_on_terminals: whether nothing is shown where standard error is neither a terminal nor a notebook.

    Yields:
      A function to call with (work done, total work).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets gets a bar of text
        from tqdm.auto import tqdm

    hidden = None if only_on_terminals else False
    with tqdm(desc=f"{name} (compiling)", total=1, bar_format=_FORMAT_BEFORE, disable=hidden) as bar:
        if bar.disable:
            yield lambda done, total: None
            return

        def progress(done: int, total: int) -> None:
            if done and bar.bar_format != _FORMAT:
                bar.bar_format = _FORMAT
                bar.set_description(name, refresh=False)
            bar.total = total
            bar.update(done - bar.n)

        yield progress
        if not bar.n:
            progress(1, 1)
        bar.refresh()


def shows_progress(name: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorator of a function with a keyword argument ``progress``: a caller may give True for a progress bar.

    The function itself then gets the bar's function. Functions that only pass ``progress`` on need no decorator.

    Args:
      name: the name of the work, which the bar shows.
    """

    def decorated(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if kwargs.get("progress") is not True:
                return function(*args, **kwargs)
            with progress_bar(name) as progress:
                kwargs["progress"] = progress
                return function(*args, **kwargs)

        return call

    return decorated


def reporter(progress: Progress | bool) -> Progress | None:
    """The function that was given as ``progress``, or None."""
    return progress if callable(progress) else None
