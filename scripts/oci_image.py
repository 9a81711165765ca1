#!/usr/bin/env python3
"""Writes an OCI image archive with one layer, without a container engine.

    oci_image.py --output FILE.tar --name REGISTRY/NAME:TAG [--user UID:GID] [--entrypoint PATH]
                 [--label KEY=VALUE]... SOURCE=DESTINATION...

The same input gives the same bytes: files are sorted, owned by root and dated 1970. The archive is an OCI
layout that `ctr images import`, `podman load`, `skopeo` and `kind load image-archive` read, with the older
docker manifest beside it for `docker load`.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import posixpath
import tarfile

EPOCH = "1970-01-01T00:00:00Z"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Programs look their user up, and some libraries want a name for it.
ACCOUNTS = {
    "etc/passwd": b"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
    "etc/group": b"root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": b"hosts: files dns\n",
}


def main():
    arguments = parse()
    layer = root_of(arguments.files)
    # mtime=0: gzip's header would hold the time.
    packed = gzip.compress(layer, compresslevel=6, mtime=0)
    config = as_json(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "created": EPOCH,
            "config": {
                "User": arguments.user,
                "Entrypoint": [arguments.entrypoint],
                "Env": ["PATH=/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
                "WorkingDir": "/",
                "Labels": dict(label.split("=", 1) for label in arguments.label),
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            "history": [{"created": EPOCH, "created_by": "scripts/oci_image.py"}],
        }
    )
    of_image = write_archive(arguments.output, arguments.name, config, packed)
    print(f"{arguments.name} {len(layer)} bytes, compressed {len(packed)}, {of_image}")


def write_archive(output, name, config, packed):
    """An image of one packed layer; its digest."""
    manifest = as_json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
        }
    )
    named = descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    named["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1],
    }
    blobs = {blob_path(data): data for data in (config, packed, manifest)}
    docker = [{"Config": blob_path(config), "RepoTags": [name], "Layers": [blob_path(packed)]}]
    archive = {
        **blobs,
        "oci-layout": as_json({"imageLayoutVersion": "1.0.0"}),
        "index.json": as_json({"schemaVersion": 2, "manifests": [named]}),
        "manifest.json": as_json(docker),
    }
    write(output, tar_of(archive, {}))
    return digest(manifest)


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--output", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--user", default="65532:65532")
    parser.add_argument("--entrypoint", required=True)
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("files", nargs="+")
    return parser.parse_args()


def root_of(pairs):
    """The layer: the given files, accounts, and an empty /tmp."""
    files, modes = dict(ACCOUNTS), {}
    for pair in pairs:
        source, destination = pair.split("=", 1)
        path = destination.lstrip("/")
        with open(source, "rb") as file:
            files[path] = file.read()
        modes[path] = 0o755 if os.access(source, os.X_OK) else 0o644
    return tar_of(files, modes, {"tmp": 0o1777})


def tar_of(files, modes, folders=None):
    folders = dict(folders or {})
    for path in files:
        while path := posixpath.dirname(path):
            folders.setdefault(path, 0o755)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted([*files, *folders]):
            entry = tarfile.TarInfo(path)
            if path in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, folders[path]
                tar.addfile(entry)
            else:
                entry.size, entry.mode = len(files[path]), modes.get(path, 0o644)
                tar.addfile(entry, io.BytesIO(files[path]))
    return buffer.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def blob_path(data):
    return "blobs/" + digest(data).replace(":", "/")


def descriptor(media_type, data):
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def as_json(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def write(path, data):
    # Beside and renamed: an interrupted run leaves no half archive that looks whole.
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
