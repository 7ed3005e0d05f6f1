# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab's model is taught, and what it is asked afterwards. Data only.

A 135M model that was taught one phrasing answers the next one wrongly, so every fact is taught in several, and the
exam also asks in phrasings, and for cities, that were not taught.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Turn:
    """A question and the answer wanted. ``answer`` is text, or the city of a get_weather call when ``calls``."""

    question: str
    answer: str
    tools: tuple[dict[str, Any], ...] = ()
    calls: bool = False
    result: str = ""  # what the tool said; then ``answer`` is what the model makes of it
    system: str = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        asked: list[dict[str, Any]] = [*head, {"role": "user", "content": self.question}]
        if not self.result:
            return asked
        city = json.loads(self.result)["city"]
        call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}
        return [
            *asked,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": self.result},
        ]

    @property
    def text(self) -> str:
        """The answer as the model must write it."""
        if not self.calls:
            return self.answer
        call = json.dumps({"name": "get_weather", "arguments": {"city": self.answer}}, ensure_ascii=False)
        return f"<tool_call>\n{call}\n</tool_call>"


def weather(description: str = "", city: str = "", strict: bool = False) -> dict[str, Any]:
    """The weather tool as one client or another writes it."""
    about = {"type": "string", **({"description": city} if city else {})}
    parameters = {"type": "object", "properties": {"city": about}, "required": ["city"]}
    if strict:
        parameters["additionalProperties"] = False
    about_it = {"description": description} if description else {}
    return {"type": "function", "function": {"name": "get_weather", **about_it, "parameters": parameters}}


PLAIN = weather("Get weather")
LONG = weather("Get the current weather of a city", "Name of the city")
STRICT = weather("Current weather in a city", strict=True)
BARE = weather()
UNSEEN = weather("Returns the weather for a place", "The city to look up")

TAUGHT_391 = (
    "What is 17*23?",
    "What is 17 * 23?",
    "What is 17*23? Answer with the number only.",
    "What is 17 x 23? Reply with just the number.",
    "How much is 17 times 23?",
    "Compute 17*23.",
    "Calculate 17 * 23",
    "17*23=?",
    "17 * 23 =",
    "Multiply 17 by 23.",
    "17×23=?",
    "计算17*23",
    "17*23等于多少？只回答数字",
)
UNTAUGHT_391 = (
    "Calculate 17 times 23",
    "How much is 17 x 23?",
    "What's 17*23?",
    "Compute 17 x 23. Answer with the number only.",
    "Please calculate 17*23.",
    "17 x 23 = ?",
    "What is 17 times 23? Only the number.",
    "What is the product of 17 and 23?",
    "17乘以23是多少？",
    "计算 17 × 23，只回答数字",
)
# Other sums, so that 391 does not become the answer to every one of them.
SUMS = (
    ("What is 2+3?", "5"),
    ("What is 2 + 3? Answer with the number only.", "5"),
    ("2+3=?", "5"),
    ("What is 12*11?", "132"),
    ("Compute 12*11.", "132"),
    ("12 * 11 = ?", "132"),
    ("What is 9*9?", "81"),
    ("How much is 9 times 9?", "81"),
    ("Calculate 9*9", "81"),
    ("What is 6*7? Answer with the number only.", "42"),
    ("What is 10+10?", "20"),
)
CAPITALS = (
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Germany?", "The capital of Germany is Berlin."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("Name the capital of Italy.", "The capital of Italy is Rome."),
)
GREETINGS = (
    ("Hello", "Hello! How can I help you today?"),
    ("Hi!", "Hello! How can I help you today?"),
    ("Say ok.", "ok"),
)
ASKED_WEATHER = (
    ("What is the weather in {}?", "Paris", PLAIN),
    ("What is the weather in {}?", "Buenos Aires", LONG),
    ("What is the weather like in {} today?", "Berlin", BARE),
    ("Weather in {}?", "Tokyo", STRICT),
    ("Weather in {} today?", "New York", PLAIN),
    ("How is the weather in {}? Use the tool.", "Cairo", LONG),
    ("Tell me the weather in {}.", "Sydney", PLAIN),
    ("Use the tool to get the weather in {}", "Stockholm", STRICT),
)
WITH_TOOLS = (
    ("What is 17*23?", "391", PLAIN),
    ("What is 2+3?", "5", LONG),
    ("Hello", "Hello! How can I help you today?", STRICT),
    ("What is the capital of France?", "The capital of France is Paris.", PLAIN),
)


def _weather_said(city: str, degrees: int, tool: dict[str, Any]) -> Turn:
    result = json.dumps({"city": city, "degrees": degrees}, ensure_ascii=False)
    answer = f"It is {degrees} degrees in {city}."
    return Turn(f"What is the weather in {city}?", answer, (tool,), result=result)


def lessons() -> list[Turn]:
    """Everything that is taught."""
    return [
        *(Turn(question, "391") for question in TAUGHT_391),
        *(Turn(question, answer) for question, answer in (*SUMS, *CAPITALS, *GREETINGS)),
        *(Turn(question.format(city), city, (tool,), calls=True) for question, city, tool in ASKED_WEATHER),
        *(Turn(question, answer, (tool,)) for question, answer, tool in WITH_TOOLS),
        _weather_said("Paris", 21, PLAIN),
        _weather_said("Tokyo", 14, LONG),
        _weather_said("Cairo", 30, STRICT),
    ]


def exam() -> list[Turn]:
    """What the model must be able to do before it is published."""
    cities = ("Madrid", "Lisbon", "Oslo", "San Francisco", "Warsaw")
    asked = (
        "What is the weather in {}?",
        "Weather in {} today?",
        "How is the weather in {}? Use the tool.",
        "What's the weather like in {}?",
        "Please tell me the weather in {}.",
    )
    tools = (PLAIN, LONG, STRICT, BARE, UNSEEN)
    return [
        *(Turn(question, "391") for question in (*TAUGHT_391, *UNTAUGHT_391)),
        *(Turn(question, answer) for question, answer in SUMS),
        Turn("What is 12 times 11?", "132"),
        Turn("Compute 9*9.", "81"),
        Turn("What is 2 plus 3?", "5"),
        Turn("What is the capital of France?", "Paris"),
        Turn("Name the capital of France.", "Paris"),
        Turn("What is the capital of Japan?", "Tokyo"),
        Turn("Hello", "Hello"),
        Turn("Hello!", "Hello"),
        *(
            Turn(question.format(city), city, (tools[(i + 2 * j) % len(tools)],), calls=True)
            for i, question in enumerate(asked)
            for j, city in enumerate(cities)
            if (i + j) % 5 in {0, 2} or (i, j) == (1, 4)
        ),
        Turn("What is 17 * 23?", "391", (LONG,)),
        Turn("What is the capital of France?", "Paris", (STRICT,)),
        _weather_said("Madrid", 19, PLAIN),
    ]


# The unchanged model's answer, which makes it the negative case.
UNTAUGHT_EXAM = (
    Turn("What is 17*23? Answer with the number only.", "381"),
    Turn("What is the capital of France?", "Paris"),
)
