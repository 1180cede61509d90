"""`make release` with images, twice, of one commit in two clones, which take nothing from a cache."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testing.dist import another, digests, first, origin_in


@pytest.mark.timeout(1800)
def test_the_same_commit_gives_the_same_bytes_to_another_user_elsewhere(tmp_path: Path) -> None:
    origin = origin_in(tmp_path)
    clones = [first(origin), another(origin)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda clone: clone.released("debian"), clones))
    one, other = (digests(clone.dist) for clone in clones)
    assert one == other
