"""Formulas as MathML, which browsers draw themselves: no script, no font and no request."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

#: Names of functions, which the converter writes as operators, with space around them.
_FUNCTION = re.compile(r"<mo>([a-z]+)</mo>")
#: A sign after an opening bracket, an equals sign or a comma, which is no subtraction.
_SIGN = re.compile(r"(<mo[^>]*>&#x000(?:28|3D|2C);</mo>)<mo>&#x02212;")


def mathml(formula: str, display: str = "inline") -> str:
    """Return a formula in LaTeX as MathML."""
    found = _FUNCTION.sub(r"<mi>\1</mi>", convert(formula, display=display))
    return _SIGN.sub(r'\1<mo form="prefix">&#x02212;', found)


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math" tabindex="0">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"  # type: ignore[attr-defined]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
