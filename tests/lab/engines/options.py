# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the argument parser of an installed engine says: ``options.py sglang|vllm|ray [parse]``.

Runs with the Python of the engine's environment, so it imports nothing of this project. Without ``parse`` it prints the
names of all long options, one a line, which are kept in tests/unit/fixtures/ENGINE/options-VERSION.txt. With ``parse``
it reads a JSON list of ``[name, [word, …]]`` and prints a JSON object: what the parser complains about, by name.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from typing import Any


def parser_of(engine: str) -> argparse.ArgumentParser:
    """The parser that the engine itself makes for its server."""
    if engine == "sglang":
        from sglang.srt.server_args import ServerArgs

        parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(parser)
        return parser
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    made: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return made


def ray_options() -> set[str]:
    """Long options of ``ray start``, which is made with click."""
    from ray.scripts.scripts import start

    return {word for option in start.params for word in [*option.opts, *option.secondary_opts]}


def complaint(engine: str, parser: Any, words: list[str]) -> str:
    """Why the parser refuses *words*; empty when it takes them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            if engine == "ray":
                import click
                from ray.scripts.scripts import start

                try:
                    start.make_context("start", list(words))
                except click.ClickException as error:
                    return error.format_message()
            else:
                parser.parse_args(words)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            return said.getvalue().strip().splitlines()[-1]
    return ""


def main(arguments: list[str]) -> int:
    engine = arguments[0]
    parser = None if engine == "ray" else parser_of(engine)
    if arguments[1:] == ["parse"]:
        lines = json.load(sys.stdin)
        found = {name: complaint(engine, parser, words) for name, words in lines}
        print(json.dumps({name: text for name, text in found.items() if text}))
        return 0
    options = ray_options() if parser is None else {word for each in parser._actions for word in each.option_strings}
    print("\n".join(sorted(word[2:] for word in options if word.startswith("--"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
