# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: With C(--check) nothing on the target changes and C(changed) says what would have.
  diff_mode:
    description: With C(--diff) the state before and after is returned.
"""

    FACTS = r"""
options: {}
attributes:
  facts:
    description: Returns C(ansible_facts) under one key of its own and changes nothing on the target.
"""

    PLATFORM = r"""
options: {}
attributes:
  platform:
    description: The operating systems that the module runs on.
"""

    # What the facts modules share: where they read, and how long they wait for a tool.
    HOST = r"""
options:
  root:
    description:
      - Everything is read below this directory, C(/proc), C(/sys), C(/etc) and the tools included.
      - Another value than V(/) is for tests and for looking into a mounted image.
    type: path
    default: /
  timeout:
    description:
      - How long one external tool may take, in seconds.
      - A tool that takes longer is stopped, named in the result, and everything that only it could tell is null.
    type: float
    default: 10
notes:
  - A value is null when it could not be read; V(0) and V(false) are always something that was read.
  - The module does not fail because something cannot be read, and it works as an ordinary user; what only root may read
    is null then.
"""
