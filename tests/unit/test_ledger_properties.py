"""What holds for any conversation, whatever branches, retries and cuts it has, with three real tokenizers."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollhook.ledger import Ledger, Prompt, TurnId
from rollhook.protocols import Message
from rollhook.render import Renderer
from tests.exactness.families import FAMILIES, model_of
from tests.unit.ledger_script import Script, said, user

NAMES = ["SmolLM2", "Qwen3", "Llama 3.1"]
ENDS = {"SmolLM2": "<|im_end|>", "Qwen3": "<|im_end|>", "Llama 3.1": "<|eot_id|>"}

slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def renderer_of(name: str) -> Renderer:
    model = model_of(next(family for family in FAMILIES if family.name == name))
    return Renderer(model.tokenizer, chat_template=model.template)


FRAGMENTS = [
    "a",
    " b",
    "Ω",
    "𐎀",
    "\n",
    "  ",
    "<|im_end|>",
    "<|eot_id|>",
    "<think>",
    "</think>",
    "1",
    "é",
    "</s>",
]

texts = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=6).map("".join)

actions = st.lists(
    st.tuples(
        st.sampled_from(["after", "whole", "again", "raw", "open"]),
        st.integers(0, 30),
        texts,
        texts,
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def play(script: Script, name: str, steps: Any) -> list[Prompt]:
    """Take the steps. Returns the prompt of each turn that was committed."""
    ledger = script.ledger
    prompts: list[Prompt] = []
    histories: list[list[Message]] = []
    for kind, which, asked, answer, ended in steps:
        at = which % len(prompts) if prompts else None
        answered = answer
        if at is None or kind == "open":
            history = [user(asked)]
            prompt = ledger.extend(history)
        elif kind == "again":
            history = histories[at][:-1]
            prompt = prompts[at]
        elif kind == "raw":
            *history, last = histories[at]
            prompt = ledger.continue_turn(TurnId(at), asked)
            answered = f"{last['content']}{asked}{answer}"
        elif kind == "after":
            history = [*histories[at], user(asked)]
            prompt = ledger.extend([user(asked)], after=TurnId(at))
        else:
            history = [*histories[at], user(asked)]
            prompt = ledger.extend(history)
        script.answer(prompt, answer, message=said(answered), end=ENDS[name] if ended else "")
        prompts.append(prompt)
        histories.append([*history, said(answered)])
    return prompts


@pytest.mark.parametrize("name", NAMES)
@given(actions)
@slow
def test_every_sampled_token_trains_once_and_keeps_its_log_probability(name: str, steps: Any) -> None:
    ledger = Ledger(renderer_of(name))
    script = Script(ledger)
    prompts = play(script, name, steps)

    trained: Counter[float] = Counter()
    for segment in ledger.segments():
        response = segment.tokens[segment.prompt_length :]
        assert segment.prompt_length >= 1
        assert len(response) == len(segment.loss_mask) == len(segment.log_probs) >= 1
        for token, bit, log_prob in zip(response, segment.loss_mask, segment.log_probs, strict=True):
            assert (log_prob != 0.0) == bool(bit)
            if bit:
                assert script.sampled[log_prob] == token
                trained[log_prob] += 1
        for turn in segment.turn_ids:
            sent = prompts[turn].input_ids
            assert segment.tokens[: len(sent)].tolist() == sent
    assert set(trained.values()) <= {1}
    assert len(trained) == ledger.sampled_tokens
    retried = any(reason == "retry" for _, reason in ledger.forks)
    assert retried or set(trained) == set(script.sampled)


@pytest.mark.parametrize("name", NAMES)
@given(actions)
@slow
def test_there_is_one_segment_per_leaf(name: str, steps: Any) -> None:
    ledger = Ledger(renderer_of(name))
    prompts = play(Script(ledger), name, steps)

    leaves = set(range(len(prompts))) - {prompt.parent for prompt in prompts}
    segments = ledger.segments()

    assert len(segments) <= len(leaves)
    assert len({segment.turn_ids[-1] for segment in segments}) == len(segments)
    if not any(reason == "retry" for _, reason in ledger.forks):
        assert {segment.turn_ids[-1] for segment in segments} == leaves


@pytest.mark.parametrize("name", NAMES)
@given(actions)
@slow
def test_no_message_can_write_a_control_token(name: str, steps: Any) -> None:
    renderer = renderer_of(name)
    ledger = Ledger(renderer)
    prompts = play(Script(ledger), name, steps)

    added = set(renderer.tokenizer.added_tokens_decoder)
    ends = {renderer.tokenizer.convert_tokens_to_ids(end) for end in set(ENDS.values())} & added
    for prompt in prompts:
        if prompt.inserted == "text":
            assert ends.isdisjoint(prompt.delta)
        elif prompt.inserted == "messages":
            assert sum(prompt.delta.count(end) for end in ends) <= 2  # the turn's own and the message's


words = st.text(alphabet="ab Ωé𐎀\n.1", max_size=12).map(lambda text: f"x{text}y")


@pytest.mark.parametrize("name", ["SmolLM2", "Qwen2.5", "Llama 3.1"])
@given(st.lists(st.tuples(words, words), min_size=1, max_size=6))
@slow
def test_where_the_template_only_adds_the_ids_are_its_own(name: str, talk: list[tuple[str, str]]) -> None:
    renderer = renderer_of(name)
    ledger = Ledger(renderer)
    script = Script(ledger)
    history: list[Message] = []
    turn = None
    for asked, answered in talk:
        history.append(user(asked))
        prompt = ledger.extend(history[-1:], after=turn)
        assert prompt.input_ids == renderer.opening(history)
        turn = script.answer(prompt, answered, end=ENDS.get(name, "<|im_end|>"))
        history.append(said(answered))
