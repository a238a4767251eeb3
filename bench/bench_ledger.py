"""What a turn costs: rendering, the memory a live rollout holds, long conversations, parsing.

The baseline is the common way: render and tokenise the whole conversation each turn, and keep each turn's
prompt as a list. Conversations are a tool-using agent's, with Qwen3's real tokenizer and template; the
sampled tokens are the same on both sides. Putting the ids of a whole prompt together for the wire is linear
by protocol on either side and reported apart.
"""

from __future__ import annotations

import gc
import random
import re
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollhook.carried import Carried
from rollhook.ledger import Ledger, TurnId
from rollhook.parsing import make_parser
from rollhook.protocols import FinishReason, Message
from rollhook.render import Renderer
from rollhook.testing import load_tokenizer

Measurement = dict[str, float | str]

TURNS = 200
WORDS = re.findall(
    r"\w+",
    """the of a and in to is was file line error value list return state open page result number order north
    river window table market paper second quick small early public random answer question report build test
    branch commit server client socket thread memory cache token model reward policy sample""",
)

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the corpus.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


@dataclass(frozen=True, slots=True)
class Completion:
    token_ids: Sequence[int]
    log_probs: Sequence[float]
    request_id: str
    finish_reason: FinishReason = "stop"
    weight_versions: Sequence[str] = ("3",)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    matched: str | int | None = None
    carried: Carried = field(default_factory=Carried)


@dataclass(frozen=True, slots=True)
class Turn:
    """What is said to the model, what it says, and the ids it samples for it."""

    inputs: Sequence[Message]
    message: Message
    ids: Sequence[int]


def run() -> dict[str, Measurement]:
    """Every measurement of this module."""
    tokenizer = load_tokenizer("qwen3")
    renderer = Renderer(tokenizer)
    turns = conversation(tokenizer, TURNS)
    return {
        **render_cpu(tokenizer, renderer, turns),
        **memory(renderer, turns),
        **long_conversation(renderer, turns),
        **many_segments(renderer),
        **parsing(),
    }


def conversation(tokenizer: Any, count: int) -> list[Turn]:
    """A conversation of `count` turns, about 300 tokens each, two thirds of them tool results."""
    rng = random.Random(0)
    turns = []
    inputs: list[Message] = [{"role": "user", "content": text(rng, 200)}]
    for n in range(count):
        thought, query = text(rng, 40), text(rng, 12)
        call = {
            "id": f"call{n}",
            "type": "function",
            "function": {"name": "search", "arguments": {"query": query}},
        }
        message = {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]}
        written = (
            f"<think>\n{thought}\n</think>\n\n<tool_call>\n"
            f'{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call><|im_end|>'
        )
        turns.append(Turn(inputs, message, tokenizer.encode(written, add_special_tokens=False)))
        inputs = [{"role": "tool", "tool_call_id": f"call{n}", "name": "search", "content": text(rng, 190)}]
    return turns


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def play(ledger: Ledger, turns: Sequence[Turn]) -> TurnId | None:
    """Run the turns through a ledger."""
    turn = None
    for n, each in enumerate(turns):
        prompt = ledger.extend(each.inputs, tools=[TOOL], after=turn)
        turn = ledger.commit(prompt, Completion(each.ids, [-0.5] * len(each.ids), str(n)), each.message)
    return turn


def render_cpu(tokenizer: Any, renderer: Renderer, turns: Sequence[Turn]) -> dict[str, Measurement]:
    """CPU per turn to get a turn's prompt ready."""
    ours = min(cpu(lambda: play(Ledger(renderer), turns)) for _ in range(3)) / len(turns)

    def render_everything() -> None:
        history: list[Message] = []
        for each in turns:
            history += each.inputs
            tokenizer.apply_chat_template(history, tools=[TOOL], add_generation_prompt=True)
            history.append(each.message)

    baseline = cpu(render_everything) / len(turns)
    ledger = Ledger(renderer)
    last = play(ledger, turns)
    prompt = ledger.extend([{"role": "tool", "content": "", "name": "search"}], after=last)
    wire = cpu(lambda: [prompt.input_ids for _ in range(20)]) / 20
    return {
        "render_cpu_per_turn": measured(1e3 * ours, 1e3 * baseline, "ms, 200 turns"),
        "wire_ids_of_the_last_turn": {"ours": 1e3 * wire, "unit": f"ms for {prompt.length} ids"},
    }


def memory(renderer: Renderer, turns: Sequence[Turn]) -> dict[str, Measurement]:
    """What one live rollout holds, in MB."""

    def ours() -> Any:
        ledger = Ledger(renderer)
        play(ledger, turns)
        return ledger

    def baseline() -> Any:
        ledger = Ledger(renderer)  # only to know the ids; dropped before measuring what is held
        held = []
        turn = None
        prompt_ids: list[int] = []
        for n, each in enumerate(turns):
            prompt = ledger.extend(each.inputs, tools=[TOOL], after=turn)
            prompt_ids = prompt_ids + prompt.delta.tolist()
            log_probs = [-0.5 - n] * len(each.ids)
            held.append({"prompt_ids": prompt_ids, "ids": list(each.ids), "log_probs": log_probs})
            prompt_ids = prompt_ids + list(each.ids)
            turn = ledger.commit(prompt, Completion(each.ids, log_probs, str(n)), each.message)
        return held

    return {"memory_per_rollout": measured(held_mb(ours), held_mb(baseline), "MB, 200 turns")}


def long_conversation(renderer: Renderer, turns: Sequence[Turn]) -> dict[str, Measurement]:
    """The cost of turns around the 1000th over those around the 10th, ledger and rendering only."""
    ledger = Ledger(renderer)
    costs = []
    turn = None
    for n in range(1010):
        each = turns[n % len(turns)]
        started = time.process_time()
        prompt = ledger.extend(each.inputs, tools=[TOOL], after=turn)
        turn = ledger.commit(prompt, Completion(each.ids, [-0.5] * len(each.ids), str(n)), each.message)
        costs.append(time.process_time() - started)
    early, late = median(costs[1:20]), median(costs[990:1010])
    return {
        "turn_1000_vs_10": {
            "ours": 1e3 * late,
            "baseline": 1e3 * early,
            "ratio": late / early,
            "unit": "ms of turn 1000 and of turn 10; at most 2",
        }
    }


def many_segments(renderer: Renderer) -> dict[str, Measurement]:
    """Segments of 10,000 turns over segments of 1,000, per turn: 1 is linear."""

    def per_turn(count: int) -> float:
        ledger = Ledger(renderer)
        turn = None
        message = {"role": "assistant", "content": "yes"}
        for n in range(count):
            prompt = ledger.extend([{"role": "user", "content": "go"}], after=turn)
            turn = ledger.commit(prompt, Completion([9, 9, 9], [-0.5] * 3, str(n)), message)
        return min(cpu(lambda: [ledger.segments()]) for _ in range(3)) / count

    many, few = per_turn(10_000), per_turn(1_000)
    return {
        "segments_10000_turns": {
            "ours": 1e6 * many,
            "baseline": 1e6 * few,
            "ratio": many / few,
            "unit": "us a turn, of 10,000 and of 1,000 turns; 1 is linear",
        }
    }


def parsing() -> dict[str, Measurement]:
    """Megabytes of model text parsed in a second, whole and streamed in pieces of 16 characters."""
    rng = random.Random(0)
    turn = f"<think>\n{text(rng, 300)}\n</think>\n\n{text(rng, 100)}\n" + "".join(
        f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{text(rng, 80)}"}}}}\n</tool_call>\n'
        for _ in range(3)
    )
    turns = 200

    def whole() -> None:
        for _ in range(turns):
            make_parser("qwen25", "qwen3", tools=[TOOL]).parse(turn)

    def streamed() -> None:
        for _ in range(turns):
            parser = make_parser("qwen25", "qwen3", tools=[TOOL])
            for at in range(0, len(turn), 16):
                parser.feed(turn[at : at + 16])
            parser.finish()

    size = len(turn.encode()) * turns / 1e6
    return {
        "parse_throughput": {"ours": size / cpu(whole), "unit": "MB/s"},
        "parse_throughput_streamed": {"ours": size / cpu(streamed), "unit": "MB/s, in pieces of 16"},
    }


def measured(ours: float, baseline: float, unit: str) -> Measurement:
    return {"ours": ours, "baseline": baseline, "ratio": baseline / ours, "unit": unit}


def cpu(work: Callable[[], Any]) -> float:
    """Seconds of CPU."""
    started = time.process_time()
    work()
    return time.process_time() - started


def held_mb(make: Callable[[], Any]) -> float:
    """Megabytes that what `make` returns holds."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = make()
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del kept
    return held / 1e6


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
