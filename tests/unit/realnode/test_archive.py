"""Images as files: what `docker load` and `ctr images import` look for in them."""

import hashlib
import json
import tarfile
from pathlib import Path

from realnode import archive


def test_a_layer_that_images_share_is_in_the_file_once(tmp_path: Path) -> None:
    base, own, target = (tmp_path / name for name in ("base.tar", "own.tar", "images.tar"))
    base.write_bytes(archive.tar({"usr/bin/tool": b"tool"}, 0o755, {"bin/tool": "../usr/bin/tool"}))
    own.write_bytes(archive.tar({"etc/settings": b"settings"}, 0o644))
    images = [
        archive.Image("example.com/one:1", [base], {"Entrypoint": ["/bin/tool"]}),
        archive.Image("example.com/two:1", [base, own], {}),
    ]
    archive.write(target, images, "amd64")
    digests = [hashlib.sha256(layer.read_bytes()).hexdigest() for layer in (base, own)]
    with tarfile.open(target) as written:
        names = written.getnames()
        read = {name: file.read() for name in names if (file := written.extractfile(name)) is not None}
    assert sorted(name for name in names if name.endswith(".tar")) == sorted(
        f"{d}/layer.tar" for d in digests
    )
    one, two = json.loads(read["manifest.json"])
    assert (one["RepoTags"], two["RepoTags"]) == (["example.com/one:1"], ["example.com/two:1"])
    assert [len(one["Layers"]), len(two["Layers"])] == [1, 2]
    about = json.loads(read[two["Config"]])
    assert about["rootfs"]["diff_ids"] == [f"sha256:{digest}" for digest in digests]
    assert json.loads(read[one["Config"]])["config"]["Entrypoint"] == ["/bin/tool"]
    again = tmp_path / "again.tar"
    archive.write(again, images, "amd64")
    assert again.read_bytes() == target.read_bytes()
