from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollhook.embedded.params import SamplingParams
from rollhook.embedded.text import matched_stop, visible_text

STOP: dict[str, Any] = {"type": "stop", "matched": "</answer>"}


def encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def test_a_stop_string_cut_across_tokens_matches_at_the_token_that_completes_it(
    smollm2_tokenizer: Any,
) -> None:
    ids = encode(smollm2_tokenizer, "<answer>4</answer> and more")
    matches = [matched_stop(smollm2_tokenizer, ids[:n], ["</answer>"]) for n in range(1, len(ids) + 1)]
    first = matches.index("</answer>") + 1

    assert len(encode(smollm2_tokenizer, "</answer>")) > 1
    assert "</answer>" not in smollm2_tokenizer.decode(ids[: first - 1])
    assert "</answer>" in smollm2_tokenizer.decode(ids[:first])


def test_of_two_stop_strings_that_match_at_once_the_first_in_the_list_is_named(
    smollm2_tokenizer: Any,
) -> None:
    ids = encode(smollm2_tokenizer, "one two")

    assert matched_stop(smollm2_tokenizer, ids, ["absent", "two", "wo"]) == "two"


def test_a_special_token_can_be_a_stop_string(smollm2_tokenizer: Any) -> None:
    assert matched_stop(smollm2_tokenizer, [504, 2], ["<|im_end|>"]) == "<|im_end|>"


@pytest.mark.parametrize(("no_stop_trim", "text"), [(True, "4</answer>"), (False, "4")])
def test_text_after_a_matched_stop_string_is_never_shown(
    smollm2_tokenizer: Any, no_stop_trim: bool, text: str
) -> None:
    ids = encode(smollm2_tokenizer, "4</answer>\n\n")
    params = SamplingParams(stop="</answer>", no_stop_trim=no_stop_trim)

    assert visible_text(smollm2_tokenizer, ids, params, STOP) == text


@pytest.mark.parametrize(
    ("no_stop_trim", "skip_special_tokens", "text"),
    [(False, False, "The"), (True, False, "The<|im_end|>"), (True, True, "The"), (False, True, "The")],
)
def test_a_matched_stop_token_is_shown_when_kept_and_not_skipped(
    smollm2_tokenizer: Any, no_stop_trim: bool, skip_special_tokens: bool, text: str
) -> None:
    params = SamplingParams(no_stop_trim=no_stop_trim, skip_special_tokens=skip_special_tokens)
    finish = {"type": "stop", "matched": 2}

    assert visible_text(smollm2_tokenizer, [504, 2], params, finish) == text


def test_a_character_cut_across_tokens_appears_only_whole(smollm2_tokenizer: Any) -> None:
    ids = encode(smollm2_tokenizer, "a🦔b")
    params = SamplingParams()
    seen = [visible_text(smollm2_tokenizer, ids[:n], params, None) for n in range(len(ids) + 1)]

    assert len(ids) > 3
    assert seen == ["", *["a"] * (len(ids) - 2), "a🦔", "a🦔b"]


def test_what_may_become_a_trimmed_stop_string_is_held_back(smollm2_tokenizer: Any) -> None:
    ids = encode(smollm2_tokenizer, "4</ans")

    assert visible_text(smollm2_tokenizer, ids, SamplingParams(stop="</answer>"), None) == "4"
    kept = SamplingParams(stop="</answer>", no_stop_trim=True)
    assert visible_text(smollm2_tokenizer, ids, kept, None) == "4</ans"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=12), stop=st.sampled_from(["", "</a>", "\n\n", "é"]))
def test_every_streamed_text_is_a_prefix_of_the_final_one(
    smollm2_tokenizer: Any, ids: list[int], stop: str
) -> None:
    params = SamplingParams(stop=[stop] if stop else [])
    finish: dict[str, Any] = {"type": "length", "length": len(ids)}
    for n in range(1, len(ids) + 1):
        if matched := matched_stop(smollm2_tokenizer, ids[:n], params.stop_strings):
            ids, finish = ids[:n], {"type": "stop", "matched": matched}
            break
    final = visible_text(smollm2_tokenizer, ids, params, finish)

    for n in range(len(ids)):
        assert final.startswith(visible_text(smollm2_tokenizer, ids[:n], params, None))
