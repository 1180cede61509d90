"""Pages that are written for GitHub, as pages of a site: links, anchors, the indent of lists. Pure but for
looking which files there are.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

_FENCE: Final = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(
    r"(?P<code>(?P<ticks>`+)[^`]+(?P=ticks))|(?P<before>\]\(|^\[[^\]\n]+\]: +)(?P<target>[^)\s]+)",
    re.MULTILINE,
)
_ELSEWHERE: Final = re.compile(r"[a-z]+:|#")
# Two are enough for a list in a list on GitHub, three for a paragraph; Python-Markdown wants four.
_INDENT: Final = re.compile(r"^ {2,3}(?=\S)", re.MULTILINE)


class Checkout(NamedTuple):
    """`pages`: files outside docs/ that the site has, by their path in the checkout, and where it has them.
    `files`: a URL before which the path of any other file leads to it, with `blob` or `tree` in between."""

    root: Path
    pages: Mapping[str, str]
    url: str
    revision: str

    def on_site(self, text: str, source: str) -> str:
        """The Markdown of `source`, a path in the checkout, for the site."""
        here = self._uri(source)
        parts = _FENCE.split(text)
        parts[::2] = [_INDENT.sub("    ", self._relinked(part, source, here)) for part in parts[::2]]
        return "".join(parts)

    def _relinked(self, text: str, source: str, here: str) -> str:
        def other(found: re.Match[str]) -> str:
            if found["code"]:
                line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
                # In tables GitHub wants them escaped, and Python-Markdown would show that.
                return found[0].replace("\\|", "|") if line.lstrip().startswith("|") else found[0]
            return f"{found['before']}{self._target(found['target'], source, here)}"

        return _LINK.sub(other, text)

    def _target(self, target: str, source: str, here: str) -> str:
        if _ELSEWHERE.match(target):
            return target
        file, mark, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        uri, path = self._uri(there), self.root / there
        if uri:
            return posixpath.relpath(uri, posixpath.dirname(here)) + mark + anchor
        if there.startswith("..") or not path.exists():
            return target  # mkdocs says so
        return f"{self.url}/{'tree' if path.is_dir() else 'blob'}/{self.revision}/{there}{mark}{anchor}"

    def _uri(self, path: str) -> str:
        """Where the site has the file; "" = nowhere."""
        docs = path.removeprefix("docs/") if (self.root / path).is_file() and path.startswith("docs/") else ""
        return self.pages.get(path, docs)


class Anchors:
    """GitHub's anchors of headings, for the extension `toc`. They are numbered by page: `begin` one."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def begin(self) -> None:
        """Forgets the headings of the page before."""
        self._times.clear()

    def __call__(self, heading: str, separator: str) -> str:
        """Lower case, spaces to hyphens, punctuation dropped, repeats numbered."""
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)
        times = self._times[anchor]
        self._times[anchor] += 1
        return f"{anchor}{separator}{times}" if times else anchor
