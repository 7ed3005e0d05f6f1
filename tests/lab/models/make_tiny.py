# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``make_tiny.py MODEL OUT``: a random two-layer Llama with the tokenizer of MODEL and a context of 131072 tokens.

For tests of launch, order and failure, where the answers do not matter. 8/4 heads: tensor parallel 1, 2 and 4.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cards
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

CONTEXT = 131072


def main() -> int:
    source, out = sys.argv[1:3]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(out)
    cards.write("tiny", Path(out))
    print(f"tiny: {sum(path.stat().st_size for path in Path(out).iterdir()) / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
