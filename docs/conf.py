"""Configuration of the documentation site. `make docs` builds it, offline, with warnings as errors."""

import importlib.metadata
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
# Nothing that the build runs downloads anything; two jobs of one thread each are faster than one of two.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "0"}
# The outputs of the gallery have no progress bars.
os.environ |= {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}

project = "longspan"
author = "The longspan authors"
project_copyright = "the longspan authors, Apache License 2.0"
release = importlib.metadata.version("longspan")
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    # Those in _ext.
    "accessible",
    "docstrings",
    "mathml",
    "reference_pages",
    "repository_files",
]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
# Tables that pages include.
TABLES = ("crossovers", "decoders", "cross_attention")
exclude_patterns = [
    *("_build", "gallery/README.rst", "gallery/*.py", "_templates"),
    *(f"reference/generated/{name}.md" for name in TABLES),
]
templates_path = ["_templates"]

nitpicky = True
suppress_warnings = [
    # Functions in the configuration of the gallery.
    "config.cache",
]
default_role = "name"
highlight_language = "none"
smartquotes = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# "forward()" in the contents of the page of a class.
toc_object_entries_show_parents = "hide"
autosummary_generate = True
autosummary_imported_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

copybutton_selector = "div:not(.no-copy) > div.highlight > pre"
copybutton_exclude = ".linenos, .gp, .go"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"/plot_",
    "doc_module": ("longspan",),
    "backreferences_dir": "reference/generated/backreferences",
    "prefer_full_module": {r"longspan\."},
    "within_subsection_order": "gallery_pages.InOrder",
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 10,
    # What scripts print; and no page of times, which would load scripts from the network.
    "capture_repr": (),
    "write_computation_times": False,
    "download_all_examples": False,
    "abort_on_example_error": False,
    "parallel": int(os.environ.get("DOCS_JOBS", "2")),
    "matplotlib_animations": False,
    "reset_modules": ("matplotlib", "gallery_pages.hide_bars"),
}

html_theme = "pydata_sphinx_theme"
html_title = f"longspan {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "longspan", "image_light": "_static/icon.svg", "image_dark": "_static/icon.svg", "alt_text": ""},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "show_prev_next": False,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": []}
