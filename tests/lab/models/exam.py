# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``exam.py MODEL taught|untaught``: ask a model its exam; exit status 1, and a table, when an answer is wrong.

A text answer is right when it holds what is wanted and, for numbers, no other number. A tool call is right to the byte.
The table also shows the smallest lead, in logits, of the answer's tokens over their best rivals: an engine that rounds
differently (other kernels, two ranks) still gives the same answer while that is well above zero. The taught model must
lead by ``LEAD``. The arithmetic here is in 32 bits: quick on every processor, and the weights are what is examined.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import torch
from lessons import UNTAUGHT_EXAM, Turn, exam
from transformers import AutoModelForCausalLM, AutoTokenizer

LONGEST = 48
LEAD = 0.75


class Candidate:
    """A model on the CPU that answers greedily."""

    def __init__(self, folder: str) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, turn: Turn) -> tuple[str, float]:
        """The answer and its smallest lead in logits."""
        prompt = self.tokenizer.apply_chat_template(
            turn.messages, tools=list(turn.tools) or None, add_generation_prompt=True, tokenize=False
        )
        ids = self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        lead = self.lead_of(ids, turn.text)
        return (turn.text, lead) if lead > 0 else self.generate(ids)

    @torch.no_grad()
    def lead_of(self, ids: torch.Tensor, text: str) -> float:
        """By how much ``text`` wins, token by token, in one pass; not above zero when the model would say another."""
        text += self.tokenizer.eos_token
        wanted = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        logits = self.model(torch.cat([ids, wanted[:, :-1]], 1)).logits[0, ids.shape[1] - 1 :].float()
        own = logits.gather(1, wanted.T)
        rivals = logits.scatter(1, wanted.T, float("-inf")).amax(1, keepdim=True)
        return float((own - rivals).min())

    @torch.no_grad()
    def generate(self, ids: torch.Tensor) -> tuple[str, float]:
        start, lead, cache, step = ids.shape[1], float("inf"), None, ids
        while ids.shape[1] - start < LONGEST:
            done = self.model(step, past_key_values=cache, use_cache=True)
            cache = done.past_key_values
            best = done.logits[0, -1].float().topk(2)
            lead = min(lead, (best.values[0] - best.values[1]).item())
            step = best.indices[:1].view(1, 1)
            ids = torch.cat([ids, step], 1)
            if step.item() == self.tokenizer.eos_token_id:
                break
        return self.tokenizer.decode(ids[0, start:], skip_special_tokens=True), lead


def right(turn: Turn, got: str) -> bool:
    if turn.calls:
        return got == turn.text
    if turn.answer.isdigit():
        asked = set(re.findall(r"\d+", turn.question))
        return set(re.findall(r"\d+", got)) - asked == {turn.answer} - asked
    return turn.answer in got


def main() -> int:
    start = time.monotonic()
    folder, kind = sys.argv[1:3]
    candidate = Candidate(folder)
    turns = exam() if kind == "taught" else list(UNTAUGHT_EXAM)
    wrong = 0
    smallest = float("inf")
    for turn in turns:
        got, lead = candidate.answer(turn)
        ok = right(turn, got) and (lead >= LEAD or kind != "taught")
        wrong += not ok
        smallest = min(smallest, lead)
        if not ok or "-v" in sys.argv:
            line = f"{'ok ' if ok else 'BAD'} {lead:5.2f} {'tool ' if turn.tools else ''}{turn.question!r} -> {got!r}"
            print(line + ("" if right(turn, got) else f", not {turn.text!r}"))
    seconds = time.monotonic() - start
    print(f"{kind}: {len(turns) - wrong} of {len(turns)} right, smallest lead {smallest:.2f}, {seconds:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
