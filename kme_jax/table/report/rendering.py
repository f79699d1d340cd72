"""How values become HTML: Jinja2 templates, which are files of the package."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")  # not in HTML, or not in UTF-8


def printable(value: Any) -> Any:
    """Text without characters that HTML or UTF-8 cannot hold. Other values, and HTML of a template, are returned as is.

    Templates apply it to each value that they show. They escape the result.
    """
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)
    return value


@functools.cache
def environment() -> jinja2.Environment:
    """The templates of a report, ``templates/*``. They escape every value, and a value that is missing is an error.

    Raises:
      ModuleNotFoundError: Jinja2 is not installed.
    """
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('reports need Jinja2: pip install "kme_jax[tables]"', name="jinja2") from error
    return jinja2.Environment(
        loader=jinja2.PackageLoader("kme_jax.table.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
