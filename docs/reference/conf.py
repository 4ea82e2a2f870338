# SPDX-License-Identifier: GPL-3.0-or-later
"""Sphinx: the reference of the Python package and of hocket.h. scripts/docs builds it."""

import inspect
import os
import re
import sys
from pathlib import Path

from sphinx.ext.napoleon.docstring import GoogleDocstring

TOP = Path(os.environ["HOCKET_TOP"])
sys.path.insert(0, str(TOP / "python"))

project = "hocket"
release = re.search(r"project\(hocket VERSION ([0-9.]+)", (TOP / "CMakeLists.txt").read_text())[1]
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"hocket {release}"
html_copy_source = False

# The package is imported without torch: signatures and docstrings do not need it.
autodoc_mock_imports = ["torch", "transformers"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"

# A reference to a name of hocket that does not exist is a warning, and a warning fails the build.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|transformers)\..*"),
    ("c:identifier", r"u?int\d+_t|size_t"),
]

# Napoleon takes what stands before a colon for a type. Our sentences have colons, too: only names
# ("lr", "foreach, fused") are split off.
partition = GoogleDocstring._partition_field_on_colon


def partition_names(self, line):
    before, colon, after = partition(self, line)
    if colon and not re.fullmatch(r"\**\w+(, \w+)*( \(.*\))?", before.strip()):
        return line, "", ""
    return before, colon, after


GoogleDocstring._partition_field_on_colon = partition_names


def signature_of_init(app, what, name, obj, options, signature, return_annotation):
    """A class whose base is mocked inherits the mock's __new__; callers see its own __init__."""
    if what != "class" or "__init__" not in vars(obj):
        return None
    own = inspect.signature(obj.__init__)
    plain = [p.replace(annotation=p.empty) for p in list(own.parameters.values())[1:]]
    return str(own.replace(parameters=plain, return_annotation=own.empty)), None


def setup(app):
    app.connect("autodoc-process-signature", signature_of_init)
