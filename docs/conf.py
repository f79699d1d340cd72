"""The documentation. This builds it, without a network: python -m sphinx -W -j auto docs docs/_build/html"""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_extensions")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Kernels of notebooks find this checkout, and the commands that are installed beside this Python.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA warns where it loads a compiled program
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / "docs" / "_build" / ".compiled"))
os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])

from kme_jax import __version__  # noqa: E402

project = "kme_jax"
author = "The kme_jax authors"
copyright = "The kme_jax authors"
version = release = __version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "docstrings",
    "results",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = [
    "myst.header",  # CHANGELOG and CONTRIBUTING are included as they are
    "ref.python",  # a word such as "columns" may be an attribute of two classes
]

nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # the default loads scripts from elsewhere

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Formal guarantee", "Proof"]
napoleon_use_ivar = True

html_theme = "sphinx_book_theme"
html_title = f"kme_jax {release}"
html_static_path = ["_static"]
html_css_files = ["kme_jax.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "article_footer_items": [],
    "extra_footer": "",
}


def setup(app):
    """The extension for mathematics copies files, and reads no page. It does not say that it can be run in parallel."""
    mathematics = app.extensions["sphinx-mathjax-offline"]
    mathematics.parallel_read_safe = mathematics.parallel_write_safe = True
