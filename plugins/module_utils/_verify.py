# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Verify a model on a node: every byte, or its headers, or only names and sizes, and the result says which."""

from __future__ import annotations

import os
import time
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _checksums, _manifest, _precision, _structure
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text
from ansible_collections.tandem.spark.plugins.module_utils._progress import Report, silent

MODES = ("full", "structure", "size")
# SHA-256 of zero bytes: a hub's client wrote nothing (modelscope/modelscope#1365).
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
TRUSTED = "trusted, not re-read"
SHOWN = 20


def work(specification: dict[str, t.Any], report: Report = silent) -> dict[str, t.Any]:
    """Verify ``path`` in the ``mode`` wanted. Other keys, all optional: ``digest``, ``revision``, ``quantization``,
    ``checksums`` (a file of another tool in place of the manifest), ``trust``, ``remember``, ``workers``.

    Each of ``problems`` and ``notes`` has ``kind``, ``file``, ``found``, ``wanted``. What is wrong with the model
    raises nothing.
    """
    path, mode = specification["path"], specification["mode"]
    began = time.monotonic()
    result: dict[str, t.Any] = {
        "path": path,
        "mode": mode,
        "checked": mode,
        "verified": False,
        "agrees": False,
        "digest": None,
        "files": None,
        "bytes": None,
        "files_read": 0,
        "bytes_read": 0,
        "files_trusted": 0,
        "problems": [],
        "notes": [],
        "precision": None,
    }
    problems: list[dict[str, str]] = result["problems"]
    try:
        manifest = _wanted(specification)
    except (OSError, _manifest.ManifestError) as error:
        problems.append(_problem("manifest", path, str(error), "a manifest, which publishing a model leaves"))
        return dict(result, **_end(result, began))
    result["digest"] = manifest["digest"]
    problems += _other_model(specification, path, manifest)
    trusted = _manifest.read_trust(path, manifest) if specification.get("trust") and mode == "full" else None
    planned = _manifest.plan(path, manifest, trusted)
    problems += [_problem("missing", file, "nothing", "a file of the manifest") for file in planned.missing]
    for file, (found, wanted) in sorted(planned.wrong.items()):
        problems.append(_problem("empty" if found == "0 bytes" else "wrong", file, found, wanted))
    _extra(planned, specification, result)
    keys: dict[str, list[int]] = {}
    if mode == "full":
        keys = _read(planned, manifest, specification, result, report)
        if planned.trusted:
            result["checked"] = TRUSTED
    if mode != "size":
        _structural(specification, result)
    sizes = [entry["size"] for entry in manifest["files"]]
    result.update(
        files=len(sizes),
        bytes=None if None in sizes else sum(sizes),
        files_trusted=len(planned.trusted),
        precision=result["precision"],
    )
    result.update(_end(result, began))
    if specification.get("remember") and mode == "full" and "checksums" not in manifest:
        _remember(path, manifest, result, {**{file: planned.keys[file] for file in planned.trusted}, **keys})
    return result


def _problem(kind: str, file: str, found: str, wanted: str) -> dict[str, str]:
    return {"kind": kind, "file": file, "found": found, "wanted": wanted}


def _end(result: dict[str, t.Any], began: float) -> dict[str, t.Any]:
    agrees = not result["problems"]
    return {
        "agrees": agrees,
        "verified": agrees and result["checked"] == "full",
        "seconds": round(time.monotonic() - began, 3),
    }


def _wanted(specification: dict[str, t.Any]) -> dict[str, t.Any]:
    """The manifest in the model's directory, or one made of a checksum file, whose sizes are not known."""
    path, checksums = specification["path"], specification.get("checksums")
    if checksums:
        with open(checksums, "rb") as handle:
            raw = handle.read()
        present = [name for name in _manifest.walk(path)[0] if not _same(os.path.join(path, name), checksums)]
        weights = [name for name in present if name.endswith(_structure.WEIGHTS)]
        found = _checksums.parse(raw, checksums, weights)
        files = [{"path": name, "size": None, "sha256": value} for name, value in sorted(found.items())]
        return {"checksums": checksums, "model": {}, "files": files, "digest": _manifest.digest(files)}
    file = os.path.join(path, _manifest.FILE_NAME)
    text = read_text(file)
    if text is None:
        raise _manifest.ManifestError(f"no {_manifest.FILE_NAME}")
    return _manifest.load(text, file)


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _other_model(specification: dict[str, t.Any], path: str, manifest: dict[str, t.Any]) -> list[dict[str, str]]:
    """The manifest agrees with its files and is of another model: files changed under the same name."""
    problems = []
    digest, revision = specification.get("digest"), specification.get("revision")
    if digest and manifest["digest"] != digest:
        problems.append(_problem("manifest", path, f"the manifest digest {manifest['digest']}", digest))
    if revision and "checksums" not in manifest and manifest["model"].get("revision") != revision:
        problems.append(_problem("manifest", path, f"revision {manifest['model'].get('revision')}", revision))
    return problems


def _extra(planned: _manifest.Plan, specification: dict[str, t.Any], result: dict[str, t.Any]) -> None:
    checksums = specification.get("checksums")
    for file in planned.extra:
        entry = _problem("extra", file, "a file that is not in the manifest", "only files of the manifest")
        if not checksums or file.endswith(_structure.WEIGHTS):
            result["problems"].append(entry)
        elif not _same(os.path.join(specification["path"], file), checksums):
            result["notes"].append(entry)


def _read(
    planned: _manifest.Plan,
    manifest: dict[str, t.Any],
    specification: dict[str, t.Any],
    result: dict[str, t.Any],
    report: Report,
) -> dict[str, list[int]]:
    """Read every file of the plan; return the keys under which the right ones can be trusted."""
    listed = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    keys = {}
    hashed = _manifest.hash_all(specification["path"], planned.to_read, report, specification.get("workers"))
    for file, found in sorted(hashed.items()):
        if isinstance(found, OSError):
            result["problems"].append(
                _problem("wrong", file, f"a file that cannot be read: {found.strerror or found}", "a file")
            )
        elif found.changed:
            what = "a file that changed while it was read"
            result["problems"].append(_problem("wrong", file, what, "one that nothing writes to"))
        elif found.sha256 != listed[file]:
            empty = found.sha256 == EMPTY
            what = "an empty file (0 bytes)" if empty else f"sha256 {found.sha256}"
            result["problems"].append(_problem("empty" if empty else "wrong", file, what, f"sha256 {listed[file]}"))
        elif found.key is not None:
            keys[file] = found.key
    result.update(files_read=len(planned.to_read), bytes_read=sum(planned.to_read.values()))
    return keys


def _structural(specification: dict[str, t.Any], result: dict[str, t.Any]) -> None:
    named = {problem["file"] for problem in result["problems"]}
    structure = _structure.inspect(specification["path"])
    result["problems"] += [
        _problem("structure", *problem) for problem in structure.problems if problem.file not in named
    ]
    result["notes"] += [_problem("structure", *note) for note in structure.notes]
    result["precision"] = {
        "method": structure.precision.method,
        "bits": structure.precision.bits,
        "source": structure.precision.source,
        "bytes_by_dtype": structure.dtypes,
    }
    difference = _precision.difference(specification.get("quantization") or {}, structure.precision, structure.dtypes)
    if difference:
        file = structure.precision.source or specification["path"]
        result["problems"].append(_problem("precision", file, *difference))


def _remember(path: str, manifest: dict[str, t.Any], result: dict[str, t.Any], keys: dict[str, list[int]]) -> None:
    if result["agrees"]:
        _manifest.write_trust(path, manifest["digest"], keys)
    else:
        _manifest.forget_trust(path)


def text(result: dict[str, t.Any]) -> str:
    """What was looked at and everything that is wrong, for a message."""
    if not result["problems"]:
        return f"{result['path']}: {LOOKED[result['checked']].format(**result)}"
    lines = [f"{p['file']}: found {p['found']}, wanted {p['wanted']}" for p in result["problems"][:SHOWN]]
    if len(result["problems"]) > SHOWN:
        lines.append(f"and {len(result['problems']) - SHOWN} more, all of them in problems of this task's result")
    kinds = {problem["kind"] for problem in result["problems"]}
    remedies = [remedy for remedy, of in REMEDIES.items() if kinds & of]
    return f"{result['path']} ({result['checked']}): " + "; ".join(lines) + f". {' '.join(remedies)}"


LOOKED = {
    "full": "verified, all {files_read} files were read",
    TRUSTED: "agrees; {files_read} files were read, {files_trusted} trusted, not re-read",
    "structure": "names, sizes and headers agree; the weights were not read, so this is no verification",
    "size": "names and sizes agree; nothing was read, so this is no verification",
}
REMEDIES = {
    "Run tandem.spark.model again, which fetches or copies the model afresh.": {
        "manifest",
        "missing",
        "wrong",
        "empty",
        "structure",
    },
    "Remove what is not in the manifest.": {"extra"},
    "Take the publisher's own repository at the recipe's revision, or correct model.quantization of the recipe.": {
        "precision"
    },
}
