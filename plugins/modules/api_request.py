#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: api_request
short_description: Send one request to the API from a node
description:
  - For an API that only the node itself reaches, such as one bound to C(127.0.0.1). Used by
    M(tandem.spark.acceptance), which judges the reply.
  - No proxy is asked and no redirect is followed. A refused connection and a missing answer are results, not failures.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
    details: It asks also in check mode; M(tandem.spark.acceptance) does not call it then.
  diff_mode:
    support: none
options:
  url:
    description: URL to ask, with its path.
    type: str
    required: true
  body:
    description: JSON text to send with POST. Without it the request is a GET.
    type: str
  key:
    description: Key to send. Without it the request carries none.
    type: str
  timeout_s:
    description: Seconds for the whole answer.
    type: float
    default: 60
"""

EXAMPLES = r"""
- name: Ask for the models
  tandem.spark.api_request:
    url: http://127.0.0.1:8000/v1/models
    key: "{{ tandem_api_key }}"
"""

RETURN = r"""
status:
  description: HTTP status, 0 when there was no complete answer.
  returned: success
  type: int
text:
  description: The answer, or why there was none.
  returned: success
  type: str
"""

import http.client
import time
import typing as t
import urllib.error
import urllib.request

from ansible.module_utils.basic import AnsibleModule


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: t.Any) -> None:
        return None


def ask(url: str, body: str | None, key: str | None, timeout_s: float) -> tuple[int, str]:
    """(status, text); status 0 when there was no complete answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, None if body is None else body.encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    deadline = time.monotonic() + timeout_s
    try:
        try:
            answer = opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            pieces = []
            # What has come is read, never waited for in full: a server that trickles would hold the reader.
            for piece in iter(lambda: answer.read1(1 << 16), b""):
                pieces.append(piece)
                if time.monotonic() > deadline:
                    return 0, f"no complete answer within {timeout_s} s"
            if getattr(answer, "length", None):
                return 0, f"no answer: the connection ended {answer.length} bytes before the answer did"
            return int(answer.status or 0), b"".join(pieces).decode("utf-8", "replace")
    except TimeoutError:
        return 0, f"no answer within {timeout_s} s"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, f"no answer: {type(error).__name__}: {error}"


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "body": {"type": "str"},
            "key": {"type": "str", "no_log": True},
            "timeout_s": {"type": "float", "default": 60},
        },
        supports_check_mode=True,
    )
    given = module.params
    status, text = ask(given["url"], given["body"], given["key"], given["timeout_s"])
    module.exit_json(changed=False, status=status, text=text)


if __name__ == "__main__":
    main()
