# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Long work of a node as a transient unit: start it once, tell how far it is, attach to it again, keep its result.

What a job is stands in a directory of its own, readable by root only::

    /run/tandem-jobs/NAME/order.json     what is to be done, with the digest of it
                          secrets.json   removed by the job as soon as it has read it
                          progress.json  where it stands, replaced in one rename
                          outcome.json   its result or why there is none
                          collected      somebody was told the outcome

Not below /run/tandem: that is the rank's RuntimeDirectory=, which systemd empties when the rank stops. A reboot ends
every job and forgets it; the next run starts it again, and the work goes on with what is on the disk.

The program of the unit is a zip of this file and of everything that the works import, so that it does not depend on
Ansible's temporary files. It is also what a controller asks for the state, with one short command.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import typing as t
import zipfile

from ansible_collections.tandem.spark.plugins.module_utils import _systemd, _works
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, replace
from ansible_collections.tandem.spark.plugins.module_utils._lock import alone
from ansible_collections.tandem.spark.plugins.module_utils._progress import Progress

ROOT = "/run/tandem-jobs"
PACKAGE = "ansible_collections.tandem.spark.plugins.module_utils"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
NEWS_S = 0.5
LOCK_S = 60.0
STOP_S = 20
LOG_LINES = 15
MAIN = f"import sys\nfrom {PACKAGE} import _job\n\nsys.exit(_job.main(sys.argv[1:]))\n"

Run = t.Callable[[list[str]], tuple[int, str, str]]


class JobError(Exception):
    """A job that cannot be started; the text says what was found, what was wanted and what to do."""


def run_command(words: list[str]) -> tuple[int, str, str]:
    """Run a short command: (status, output, errors)."""
    done = subprocess.run(  # pylint: disable=ansible-bad-function
        words, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def unit_name(name: str) -> str:
    """The transient unit of the job *name*."""
    return f"tandem-job-{name}.service"


def digest(work: str, specification: dict[str, t.Any]) -> str:
    """What makes two orders the same. Secrets are no part of it: another token is not another download."""
    return hashlib.sha256(json.dumps([work, specification], sort_keys=True).encode()).hexdigest()


# --- the program


def sources() -> dict[str, str]:
    """The text of every file of this collection that the works need, by its path in the zip."""
    found: dict[str, str] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(f"{PACKAGE}.") and isinstance(module, types.ModuleType) and module.__spec__:
            loader = t.cast("t.Any", module.__spec__.loader)
            is_package = module.__spec__.submodule_search_locations is not None
            path = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
            found[path] = loader.get_source(name) or ""
    parts = PACKAGE.split(".")
    for depth in range(1, len(parts) + 1):
        found["/".join([*parts[:depth], "__init__.py"])] = ""
    return dict(found, **{"__main__.py": MAIN})


def pack(files: dict[str, str]) -> bytes:
    """A zip that is the same bytes for the same files, so that its digest names it."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), files[path])
    return memory.getvalue()


def place_program(directory: str, content: bytes) -> str:
    """Put the program into *directory* unless it is there, and remove older ones that no job is made of."""
    path = os.path.join(directory, f"tandem-job-{hashlib.sha256(content).hexdigest()[:16]}.pyz")
    os.makedirs(directory, exist_ok=True)
    try:
        with open(path, "rb") as handle:
            same = handle.read() == content
    except FileNotFoundError:
        same = False
    if not same:
        replace(path, content, 0o755)
    used = {os.path.basename(order.get("program", "")) for order in map(_order, _names())}
    for entry in os.listdir(directory):
        if re.fullmatch(r"tandem-job-[0-9a-f]{16}\.pyz", entry) and entry not in used | {os.path.basename(path)}:
            os.unlink(os.path.join(directory, entry))
    return path


# --- the state


def place(name: str) -> str:
    """The directory of the job *name*."""
    return os.path.join(ROOT, name)


def _names() -> list[str]:
    return sorted(os.listdir(ROOT)) if os.path.isdir(ROOT) else []


def _read(name: str, file: str) -> dict[str, t.Any]:
    try:
        return dict(json.loads(read_text(os.path.join(place(name), file)) or "{}"))
    except ValueError:
        return {}


def _order(name: str) -> dict[str, t.Any]:
    return _read(name, "order.json")


def _write(name: str, file: str, value: dict[str, t.Any]) -> None:
    replace(os.path.join(place(name), file), json.dumps(value).encode(), 0o600)


def status(name: str, run: Run = run_command) -> dict[str, t.Any]:
    """``state`` (absent, running, finished or failed), ``order``, ``progress``, ``outcome`` and, failed, ``log``."""
    # The unit first: a job writes its outcome before it ends, so one that runs no more has written all it will.
    _code, out, _err = run(_systemd.show_command(unit_name(name)))
    active = _systemd.is_active(_systemd.parse_show(out))
    order, progress, outcome = _order(name), _read(name, "progress.json"), _read(name, "outcome.json")
    answer: dict[str, t.Any] = {"state": "absent", "order": order, "progress": progress, "outcome": outcome, "log": ""}
    if not order:
        return answer
    if outcome:
        answer["state"] = "finished" if outcome["ok"] else "failed"
    elif active:
        answer["state"] = "running"
    else:
        answer["state"] = "failed"
        answer["outcome"] = {"ok": False, "message": "it was killed, or the node ran out of memory"}
    if answer["state"] == "failed":
        command = _systemd.journal_command(unit_name(name), LOG_LINES, progress.get("invocation", ""))
        answer["log"] = run(command)[1].strip()
    return answer


def differences(running: dict[str, t.Any], wanted: dict[str, t.Any]) -> str:
    """Say in which options two specifications differ."""
    keys = [key for key in sorted({*running, *wanted}) if running.get(key) != wanted.get(key)]
    return "; ".join(f"{key}: running {running.get(key)!r}, wanted {wanted.get(key)!r}" for key in keys)


def start(
    name: str,
    work: str,
    specification: dict[str, t.Any],
    secrets: dict[str, str],
    *,
    directory: str,
    timeout_s: int,
    run: Run = run_command,
    python: str = sys.executable,
) -> dict[str, t.Any]:
    """Start the job *name*, or attach to it when it runs or has ended since anybody looked.

    Returns :func:`status` with ``state`` started, attached or finished, and ``program``. Raises JobError, BusyError.
    """
    os.makedirs(ROOT, mode=0o700, exist_ok=True)
    wanted = digest(work, specification)
    with alone(ROOT, LOCK_S):
        now = status(name, run)
        same = now["order"].get("digest") == wanted
        if now["state"] == "running" and not same:
            order = now["order"]
            kind = "" if order["work"] == work else f"work: running {order['work']!r}, wanted {work!r}; "
            raise JobError(
                f"{unit_name(name)} is running another job on this node; {kind}"
                f"{differences(order['specification'], specification)}. Wait until it ends, or end it with "
                f'"systemctl stop {unit_name(name)}", and run this stage again'
            )
        told = os.path.exists(os.path.join(place(name), "collected"))
        if same and (now["state"] == "running" or (now["state"] == "finished" and not told)):
            state = "attached" if now["state"] == "running" else "finished"
            return dict(now, state=state, program=now["order"]["program"])
        program = place_program(directory, pack(sources()))
        shutil.rmtree(place(name), ignore_errors=True)
        os.mkdir(place(name), 0o700)
        order = {"work": work, "specification": specification, "digest": wanted, "program": program}
        _write(name, "secrets.json", secrets)
        _write(name, "order.json", dict(order, timeout_s=timeout_s))
        command = ["systemd-run", "--quiet", "--collect", f"--unit={unit_name(name)}", "--service-type=exec"]
        command += [f"--description=tandem.spark job {name} ({work})", f"--property=RuntimeMaxSec={timeout_s}"]
        command += [f"--property=TimeoutStopSec={STOP_S}", "--property=UMask=0022"]
        code, _out, err = run([*command, python, "-I", program, "run", name])
        if code != 0:
            shutil.rmtree(place(name), ignore_errors=True)
            raise JobError(f"{unit_name(name)}: systemd-run ended with status {code}: {err.strip()}")
        return dict(status(name, run), state="started", program=program)


def stop(name: str, run: Run = run_command) -> bool:
    """End the job *name* and forget it; whether there was one."""
    there = bool(_order(name))
    if there:
        run(["systemctl", "stop", unit_name(name)])
        shutil.rmtree(place(name), ignore_errors=True)
    return there


# --- inside the unit


class Reporter:
    """Keeps what the work reports in a file, not more often than anybody reads it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.told = (float("-inf"), "")
        self.invocation = os.environ.get("INVOCATION_ID", "")

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        with self.lock:
            if now - self.told[0] < NEWS_S and progress.stage == self.told[1]:
                return
            self.told = (now, progress.stage)
            news = dict(progress._asdict(), at=now, invocation=self.invocation)
            # A full disk is the work's to tell, not the report's.
            with contextlib.suppress(OSError):
                _write(self.name, "progress.json", news)


def explain(error: BaseException) -> str:
    """What to say of an error: our own say all there is, others need their name."""
    own = type(error).__module__.startswith("ansible_collections.tandem.")
    return str(error) if own else f"{type(error).__name__}: {error}"


def work_on(name: str) -> int:
    """Do what is ordered and write the outcome; the status that the unit ends with."""
    order = _order(name)
    secrets = _read(name, "secrets.json")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(place(name), "secrets.json"))
    began = time.monotonic()

    def end(ok: bool, **more: t.Any) -> None:
        _write(name, "outcome.json", {"ok": ok, "seconds": round(time.monotonic() - began, 1), **more})

    def ended(_number: int, _frame: types.FrameType | None) -> None:
        seconds = time.monotonic() - began
        limit = seconds >= order["timeout_s"] - 1
        why = f"reached its limit of {order['timeout_s']} s" if limit else "was told to stop"
        end(False, message=f"it {why} after {seconds:.0f} s; run this stage again, and it goes on where it stopped")
        # At once: threads in the middle of a file are not waited for.
        os._exit(143)

    signal.signal(signal.SIGTERM, ended)
    reporter = Reporter(name)
    reporter(Progress("start", 0, None))
    try:
        result = _works.WORKS[order["work"]]({**order["specification"], **secrets}, reporter)
    except Exception as error:
        message = explain(error)
        for secret in filter(None, secrets.values()):
            message = message.replace(secret, "***")
        if not type(error).__module__.startswith("ansible_collections.tandem."):
            traceback.print_tb(error.__traceback__)
        print(message, flush=True)  # pylint: disable=ansible-bad-function
        end(False, message=message)
        return 1
    end(True, result=result)
    return 0


def main(words: list[str]) -> int:
    """``run NAME`` in the unit, ``status NAME`` for the controller: one line of JSON."""
    verb, name = words
    if verb == "run":
        return work_on(name)
    now = status(name)
    news = {key: now[key] for key in ("state", "progress", "outcome", "log")}
    print(json.dumps(news), flush=True)  # pylint: disable=ansible-bad-function
    if now["state"] in ("finished", "failed"):
        with contextlib.suppress(FileNotFoundError), open(os.path.join(place(name), "collected"), "w"):
            pass
    return 0
