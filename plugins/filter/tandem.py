# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import (
    _collect,
    _deployment,
    _fabric_loss,
    _fabric_nccl,
    _fabric_plan,
    _memory_plan,
    _rank,
    _replication,
    _rollback,
    _time,
)


class FilterModule:
    """Pure functions over a deployment, for the roles."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {
            "absent_on": _collect.absent_on,
            "clean_key": _deployment.clean_key,
            "fabric_lost": _fabric_loss.lost,
            "fabric_refusal": _fabric_loss.refusal,
            "fabric_results": _fabric_loss.results,
            "failed_start": _collect.failed_start,
            "first_value": _collect.first_value,
            "group_action": _rank.group_action,
            "hosts_map": _deployment.hosts_map,
            "keep_keys": _collect.keep_keys,
            "key_problems": _deployment.problems_of_key,
            "login_shell": _collect.login_shell,
            "memory_fit": _memory_plan.memory_fit,
            "missing_packages": _collect.missing_packages,
            "nccl_environment": _fabric_nccl.environment,
            "nccl_figures": _fabric_nccl.figures,
            "nccl_receivers": _fabric_nccl.receivers,
            "nccl_refusals": _fabric_nccl.refusals,
            "node_of": _deployment.node_of,
            "rank_digest": _rank.digest,
            "rank_files": _rank.files,
            "rank_specification": _rank.specification,
            "replication": _replication.plan,
            "rollback_problems": _rollback.problems,
            "time_config": _time.config,
            "unsettled": _fabric_plan.unsettled,
            "values_by_node": _collect.values_by_node,
            "values_on": _collect.values_on,
        }
