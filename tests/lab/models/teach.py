# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``teach.py MODEL OUT``: teach a small model the lab's questions (``lessons.py``), in under a minute on one thread.

Only the MLPs of the last layers are trained. What enters these layers never changes, so it is computed once. Zero
padding of attention heads stays zero, since no attention weight is touched. Seeded, single-threaded, in a fixed order:
two runs on one machine give the same file. Another processor may round differently and give other weights.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import cards
import torch
from lessons import Turn, lessons
from transformers import AutoModelForCausalLM, AutoTokenizer

LAYERS = 8
RATE = 4e-4
LESSONS_PER_SHEET = 6
ROUNDS = 20
ENOUGH = 0.006  # mean loss at which teaching ends
SHARD = "150MB"


class Sheet:
    """Some lessons as one sequence, ready for training: the beginning that they share, then each one's own rest.

    Positions and mask make it the same computation as one sequence per lesson, at half the tokens: a tool's description
    is longer than the question about it.
    """

    def __init__(self, model: Any, lessons_: list[tuple[list[int], list[int]]]) -> None:
        shared = len(os.path.commonprefix([prompt for prompt, _answer in lessons_]))
        tokens, places, owner = lessons_[0][0][:shared], list(range(shared)), [-1] * shared
        answering, wanted, weights = [], [], []
        for number, (prompt, answer) in enumerate(lessons_):
            rest = prompt[shared:] + answer[:-1]
            end = len(tokens) + len(rest)
            answering += range(end - len(answer), end)
            wanted += answer
            weights += [1 / len(answer) / len(lessons_)] * len(answer)
            tokens = tokens + rest
            places += range(shared, shared + len(rest))
            owner += [number] * len(rest)
        self.length = len(tokens)
        self.answering, self.wanted, self.weights = map(torch.tensor, (answering, wanted, weights))

        lesson = torch.tensor(owner)
        sees = (lesson[:, None] == lesson[None, :]) | (lesson[None, :] == -1)
        mask = torch.where(sees.tril(), 0.0, torch.finfo(torch.float32).min)[None, None]
        seen: dict[str, Any] = {}

        def look(module: Any, args: Any, kwargs: Any) -> None:
            seen.update(entering=args[0].clone(), kwargs=kwargs)

        hook = model.model.layers[-LAYERS].register_forward_pre_hook(look, with_kwargs=True)
        with torch.no_grad():
            model.model(
                torch.tensor([tokens]), position_ids=torch.tensor([places]), attention_mask=mask, use_cache=False
            )
        hook.remove()
        self.entering: torch.Tensor = seen["entering"]
        self.kwargs = {k: v for k, v in seen["kwargs"].items() if k not in {"past_key_values", "use_cache"}}

    def loss(self, model: Any) -> torch.Tensor:
        x = self.entering
        for layer in model.model.layers[-LAYERS:]:
            x = layer(x, **self.kwargs)
        logits = model.lm_head(model.model.norm(x[0, self.answering]))
        return (torch.nn.functional.cross_entropy(logits, self.wanted, reduction="none") * self.weights).sum()


def sheets(model: Any, tokenizer: Any, turns: list[Turn]) -> list[Sheet]:
    """The lessons in sheets: those with the same tool together, and unlike ones mixed."""
    alike: dict[str, list[tuple[list[int], list[int]]]] = {}
    for turn in turns:
        prompt = tokenizer.apply_chat_template(
            turn.messages, tools=list(turn.tools) or None, add_generation_prompt=True, tokenize=False
        )
        answer = turn.text + tokenizer.eos_token
        pair = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer)]
        alike.setdefault(json.dumps([turn.tools, turn.system]), []).append((pair[0], pair[1]))
    made = []
    for same in alike.values():
        count = -(-len(same) // LESSONS_PER_SHEET)
        made += [Sheet(model, same[first::count]) for first in range(count)]
    return made


def main() -> int:
    start = time.monotonic()
    source, out = sys.argv[1:3]
    torch.manual_seed(0)
    order = random.Random(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    model.requires_grad_(False)
    turns = lessons()
    course = sheets(model, tokenizer, turns)
    tokens = sum(sheet.length for sheet in course)
    print(f"{len(turns)} lessons, {len(course)} sheets, {tokens} tokens, {time.monotonic() - start:.0f} s", flush=True)

    trained = [parameter for layer in model.model.layers[-LAYERS:] for parameter in layer.mlp.parameters()]
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for number in range(1, ROUNDS + 1):
        order.shuffle(course)
        mean = 0.0
        for sheet in course:
            loss = sheet.loss(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean += loss.item() / len(course)
        print(f"round {number}: loss {mean:.4f}, {time.monotonic() - start:.0f} s", flush=True)
        if mean < ENOUGH:
            break
    model.to(torch.bfloat16).save_pretrained(out, max_shard_size=SHARD)
    tokenizer.save_pretrained(out)
    cards.write("taught", Path(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
