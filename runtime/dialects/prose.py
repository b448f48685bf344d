"""Text around tags: white space beside a tag belongs to the tag, all other text is content."""

from collections.abc import Iterator

from firmtoken.runtime.dialects.dialect import Content


class Prose:
    """Fed with the text between tags and told of each tag."""

    def __init__(self) -> None:
        self._space = ""
        """White space whose other side has not come."""
        self._behind_tag = False

    def text(self, text: str) -> Iterator[Content]:
        """What is content for sure."""
        if self._behind_tag:
            text = text.lstrip()
        if not text:
            return
        self._behind_tag = False
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            yield Content(text=shown)

    def tag(self) -> None:
        """A tag stands here."""
        self._space, self._behind_tag = "", True

    def finish(self) -> Iterator[Content]:
        """White space at the end of all, where no tag came."""
        if self._space:
            yield Content(text=self._space)
            self._space = ""
