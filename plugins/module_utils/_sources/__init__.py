# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Where models come from, behind one interface. A source is one file with three functions; a line here adds it.

- ``listing(request) -> list[HubFile]``: every file of the revision, with its digest where the source tells one.
- ``revision(request, files) -> str | None``: what the revision stands for now: a commit, or the manifest's digest.
- ``fetch(request, files, report)``: bring *files* into ``request.path``. What is whole there is left alone, what is
  begun goes on. Nothing it leaves half done has the name of a file of the model.

Each raises :class:`SourceError` with what was found, what was wanted and what to do.
"""

from __future__ import annotations

import types

from ansible_collections.tandem.spark.plugins.module_utils._sources import bundle, directory, hub, web

SOURCES: dict[str, types.ModuleType] = {
    "huggingface": hub,
    "modelscope": hub,
    "http": web,
    "directory": directory,
    "bundle": bundle,
}
