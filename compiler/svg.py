"""SVG elements as text: escaped, without scripts, styles from outside or fonts to load."""

from xml.sax.saxutils import escape, quoteattr


def element(name: str, body: str = "", **attributes: str | float) -> str:
    """One element; `_` in an attribute's name is `-`, and a trailing one is dropped (`class_`)."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(number(value))}"
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{body}</{name}>" if body else f"<{name}{written}/>"


def number(value: str | float) -> str:
    """Coordinates to a tenth of a pixel."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def title(text: str) -> str:
    """What a pointer over the element shows."""
    return element("title", escape(text))


def label(x: float, y: float, text: str, **attributes: str | float) -> str:
    """Text at a place."""
    return element("text", escape(text), x=x, y=y, **attributes)
