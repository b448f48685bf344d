"""The pool of KV pages: page numbers with reference counts; knows nothing of what is in them."""

from collections.abc import Iterable

from firmtoken.runtime.memory.shortage import NoPages

SENTINEL_PAGE = 0
"""Target of padded rows; never handed out."""


class PagePool:
    """Pages 1..num_pages-1; a page is free when nobody refers to it."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, SENTINEL_PAGE, -1))
        self._references = [0] * num_pages
        self.num_usable = num_pages - 1

    @property
    def num_free(self) -> int:
        """Pages that `take` can hand out."""
        return len(self._free)

    @property
    def free(self) -> tuple[int, ...]:
        """The pages that `take` can hand out; the last goes first."""
        return tuple(self._free)

    def references_to(self, page: int) -> int:
        """How often this page is held."""
        return self._references[page]

    def take(self, count: int) -> tuple[int, ...]:
        """Remove `count` pages from the pool, one reference each; all or nothing."""
        if count > len(self._free):
            raise NoPages(f"{count} pages wanted, {len(self._free)} free")
        taken = tuple(self._free.pop() for _ in range(count))
        for page in taken:
            self._references[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each of these pages, which somebody holds."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and cannot be shared"
            self._references[page] += 1

    def give(self, pages: Iterable[int]) -> None:
        """One reference less; a page that nobody holds is free again."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free already"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)
