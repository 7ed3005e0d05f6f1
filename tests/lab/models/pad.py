# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``pad.py MODEL.gguf TEMPLATE OUT``: SmolLM2-135M-Instruct as safetensors, with heads that 2 or 4 ranks can share.

The model has 9 query and 3 key/value heads. One all-zero group (3 query heads, 1 key/value head) makes 12 and 4. The
group's columns of ``o_proj`` are zero as well, so that it adds exactly nothing; that is checked on a real prompt.

The GGUF file is read with the ``gguf`` package and nothing else: transformers' own reader takes four times as long,
wants accelerate, and gives a model that refuses to be saved.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import cards
import torch
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
CONTROL = 3  # token type of <|im_start|> and its like


def field(reader: GGUFReader, name: str) -> Any:
    found = reader.get_field(name)
    if found is None:
        raise KeyError(f"the GGUF file has no {name}")
    return found.contents()


def configuration(reader: GGUFReader, padded: bool) -> LlamaConfig:
    heads, groups = field(reader, "llama.attention.head_count"), field(reader, "llama.attention.head_count_kv")
    hidden = field(reader, "llama.embedding_length")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=field(reader, "llama.vocab_size"),
        hidden_size=hidden,
        intermediate_size=field(reader, "llama.feed_forward_length"),
        num_hidden_layers=field(reader, "llama.block_count"),
        num_attention_heads=heads + heads // groups if padded else heads,
        num_key_value_heads=groups + 1 if padded else groups,
        head_dim=hidden // heads,
        max_position_embeddings=field(reader, "llama.context_length"),
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": float(field(reader, "llama.rope.freq_base"))},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )


def weights(reader: GGUFReader, heads: int, groups: int) -> dict[str, torch.Tensor]:
    """The tensors under their Hugging Face names, dequantised to bfloat16."""
    state = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        name = tensor.name.removesuffix(".weight")
        if name == "token_embd":
            key = "model.embed_tokens"
        elif name == "output_norm":
            key = "model.norm"
        else:
            _blk, layer, part = name.split(".")
            key = f"model.layers.{layer}.{NAMES[part]}"
            if part in {"attn_q", "attn_k"}:  # GGUF keeps the two halves of a rotated pair side by side
                count = heads if part == "attn_q" else groups
                value = value.view(count, -1, 2, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        state[f"{key}.weight"] = value.to(torch.bfloat16)
    return state


def pad(state: dict[str, torch.Tensor], head_dim: int, per_group: int) -> dict[str, torch.Tensor]:
    """The same function with one more group of heads, all zero."""
    padded = {}
    for key, value in state.items():
        rows, columns = 0, 0
        if "q_proj" in key:
            rows = per_group * head_dim
        elif "k_proj" in key or "v_proj" in key:
            rows = head_dim
        elif "o_proj" in key:
            columns = per_group * head_dim
        padded[key] = torch.nn.functional.pad(value, (0, columns, 0, rows)) if rows or columns else value
    return padded


def tokenizer_of(reader: GGUFReader, template: str) -> PreTrainedTokenizerFast:
    """SmolLM2's tokenizer: byte-level BPE in which every digit is a token."""
    tokens, kinds = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    core.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=tokens[1],
        eos_token=tokens[2],
        pad_token=tokens[2],
        unk_token=tokens[0],
        chat_template=template,
        model_max_length=field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
    )


def build(config: LlamaConfig, state: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    with torch.device("meta"):  # no random start values, which would only be overwritten
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu").to(torch.bfloat16)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffer is not part of the state
    missing, unexpected = model.load_state_dict(state, strict=False)
    model.tie_weights()
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise ValueError(f"missing {missing}, unexpected {unexpected}")
    return model.eval()


def main() -> int:
    start = time.monotonic()
    source, template, out = map(Path, sys.argv[1:4])
    reader = GGUFReader(source)
    plain_config, config = configuration(reader, padded=False), configuration(reader, padded=True)
    state = weights(reader, plain_config.num_attention_heads, plain_config.num_key_value_heads)
    twin = pad(state, config.head_dim, config.num_attention_heads // config.num_key_value_heads)
    plain, model = build(plain_config, state), build(config, twin)
    tokenizer = tokenizer_of(reader, template.read_text(encoding="utf-8"))

    ids = tokenizer("<|im_start|>user\nWhat is 17*23?<|im_end|>\n<|im_start|>assistant\n", return_tensors="pt")
    with torch.no_grad():
        difference = (plain(**ids).logits - model(**ids).logits).abs().max().item()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    cards.write("untaught", out)
    print(f"padded to 12/4 heads, largest difference of a logit {difference}, {time.monotonic() - start:.0f} s")
    return int(difference != 0)


if __name__ == "__main__":
    sys.exit(main())
