# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make a release of random weights with valid headers, as the head would have published it; runs inside a node.

`python3 synthetic.py DIRECTORY REVISION SHARDS BYTES_PER_SHARD`
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys

BLOCK = 4 << 20


def shard(path: str, size: int, name: str) -> str:
    """A safetensors file of one tensor of random bytes; returns its digest."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    digest = hashlib.sha256()
    with open(path, "wb") as handle:
        left = size
        for block in (struct.pack("<Q", len(header)), header):
            handle.write(block)
            digest.update(block)
        while left:
            block = os.urandom(min(BLOCK, left))
            handle.write(block)
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def main(directory: str, revision: str, shards: int, size: int) -> None:
    os.makedirs(os.path.join(directory, "sub"), exist_ok=True)
    names = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
    digests = {name: shard(os.path.join(directory, name), size, f"w{n}") for n, name in enumerate(names)}
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    small = {
        "config.json": b'{"model_type": "synthetic"}',
        "model.safetensors.index.json": json.dumps(index).encode(),
        "sub/tokenizer.json": b"{}",
        "empty.txt": b"",
    }
    for name, content in small.items():
        with open(os.path.join(directory, name), "wb") as handle:
            handle.write(content)
        digests[name] = hashlib.sha256(content).hexdigest()
    files = [
        {"path": name, "size": os.path.getsize(os.path.join(directory, name)), "sha256": digests[name]}
        for name in sorted(digests)
    ]
    lines = sorted(f"{entry['sha256']}  {entry['path']}\n" for entry in files)
    manifest = {
        "format": 1,
        "model": {"id": "lab/synthetic", "revision": revision, "source": "local"},
        "files": files,
        "digest": hashlib.sha256("".join(lines).encode()).hexdigest(),
    }
    with open(os.path.join(directory, "tandem-manifest.json"), "w", encoding="utf-8") as handle:
        json.dump(manifest, handle, indent=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
