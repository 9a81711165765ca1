#!/usr/bin/env python3
"""Copies an archive of scripts/images under another name and with a label of its own: the same programs, and to a
cluster another image.

    relabel.py ARCHIVE NAME:TAG OUTPUT
"""

import json
import pathlib
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import oci_image  # noqa: E402


def main():
    archive, name, output = sys.argv[1:]
    with tarfile.open(archive) as tar:

        def read(path):
            return tar.extractfile(path).read()

        image = json.loads(read("manifest.json"))[0]
        config, (layer,) = json.loads(read(image["Config"])), image["Layers"]
        config["config"]["Labels"]["test"] = name
        print(name, oci_image.write_archive(output, name, oci_image.as_json(config), read(layer)))


if __name__ == "__main__":
    main()
