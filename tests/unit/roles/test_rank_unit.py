# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "roles/serve/templates/tandem-rank.service.j2"


def render(rank=0):
    # As ansible-core sets Jinja up.
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    variables = yaml.safe_load((ROOT / "roles/serve/vars/main.yml").read_text(encoding="utf-8"))
    variables.update(yaml.safe_load((ROOT / "roles/serve/defaults/main.yml").read_text(encoding="utf-8")))
    variables.update(yaml.safe_load((ROOT / "roles/tandem/defaults/main.yml").read_text(encoding="utf-8")))
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        {**variables, "tandem_node": {"rank": rank}, "tandem_deployment": {"name": "small", "nodes": [1, 2]}}
    )


def sections(text):
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(text)
    return parser


@pytest.mark.parametrize("rank", [0, 1])
def test_c47_systemd_accepts_it(tmp_path, rank):
    program = shutil.which("systemd-analyze")
    if not program:
        pytest.skip("not checked: systemd-analyze is not on this machine")
    text = (
        render(rank).replace("/usr/local/libexec/tandem-rank ", "/bin/true ").replace("/usr/sbin/sysctl", "/bin/true")
    )
    path = tmp_path / "tandem-rank.service"
    path.write_text(text)
    done = subprocess.run([program, "verify", "--man=no", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tandem-rank.service" not in done.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_c42_c47_what_the_unit_says(rank):
    unit = sections(render(rank))
    assert unit["Unit"]["Wants"] == "network-online.target" and "network-online.target" in unit["Unit"]["After"]
    assert unit["Service"]["Restart"] == "no"
    assert unit["Service"]["ExecStart"] == "/usr/local/libexec/tandem-rank /var/lib/tandem/current"
    assert unit["Service"]["User"] == "tandem" and unit["Service"]["LimitMEMLOCK"] == "infinity"
    assert not [key for key in unit["Service"] if key.startswith("StartLimit")]
    assert f"rank {rank} of 2 (small)" in unit["Unit"]["Description"]


def test_c51_the_key_is_a_credential_of_the_head_only():
    assert sections(render(0))["Service"]["LoadCredential"] == "api-key:/etc/tandem/api-key"
    assert "api-key" not in render(1)


def test_every_line_is_a_setting_a_section_or_a_comment():
    for line in render().splitlines():
        assert not line or line[0] in "[#" or "=" in line
