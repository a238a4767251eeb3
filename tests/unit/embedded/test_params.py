from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook.embedded.params import GenerateRequest, InvalidRequest, SamplingParams, parse_request


def sampling(**fields: Any) -> SamplingParams:
    return parse_request({"input_ids": [1], "sampling_params": fields}).sampling_params


def refusal(body: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body)
    return str(caught.value)


def test_the_defaults_are_sglangs() -> None:
    params = sampling()

    assert params == SamplingParams(
        temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, max_new_tokens=128, ignore_eos=False
    )


def test_null_means_the_default_and_no_limit_for_max_new_tokens() -> None:
    params = sampling(temperature=None, top_k=None, stop=None, seed=None, max_new_tokens=None)

    assert (params.temperature, params.top_k, params.stop_strings) == (1.0, -1, [])
    assert params.max_new_tokens is None


@pytest.mark.parametrize(
    ("name", "neutral", "active"),
    [
        ("frequency_penalty", 0.0, 0.5),
        ("repetition_penalty", 1, 1.1),
        ("min_new_tokens", 0, 4),
        ("n", 1, 2),
        ("regex", "", "[a-z]+"),
        ("logit_bias", {}, {"5": 1.0}),
        ("custom_params", {}, {"return_top_p_token_ids": True}),
    ],
)
def test_an_sglang_field_passes_only_where_it_changes_nothing(name: str, neutral: Any, active: Any) -> None:
    assert sampling(**{name: neutral}) == sampling(**{name: None}) == sampling()

    message = refusal({"input_ids": [1], "sampling_params": {name: active}})
    assert message.startswith(
        f"sampling_params: {name} is {active!r}, and the embedded engine can honour only"
    )


def test_an_unknown_field_is_named() -> None:
    assert (
        refusal({"input_ids": [1], "sampling_params": {"temprature": 1}})
        == "sampling_params.temprature: is not a field the embedded engine knows"
    )
    assert refusal({"input_ids": [1], "bogus": 1}) == "bogus: is not a field the embedded engine knows"


def test_seed_and_sampling_seed_are_one_setting() -> None:
    assert sampling(seed=7) == sampling(sampling_seed=7) == sampling(seed=7, sampling_seed=7)
    assert "two names of one setting" in refusal(
        {"input_ids": [1], "sampling_params": {"seed": 7, "sampling_seed": 8}}
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "1"},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"top_k": -2},
        {"top_k": 2.5},
        {"min_p": -0.1},
        {"max_new_tokens": 0},
        {"max_new_tokens": True},
        {"stop": [""]},
        {"stop": 3},
        {"stop_token_ids": [1.5]},
        {"seed": 2**63},
        {"ignore_eos": "yes"},
    ],
)
def test_a_value_out_of_range_names_its_field(bad: dict[str, Any]) -> None:
    (name,) = bad

    message = refusal({"input_ids": [1], "sampling_params": bad})
    assert message.startswith(f"sampling_params.{'sampling_seed' if name == 'seed' else name}")


@pytest.mark.parametrize("ids", [None, [], [1, "2"], [1, 2.0], [True], 5, "text"])
def test_a_prompt_that_is_no_list_of_ids_is_refused(ids: Any) -> None:
    assert refusal({"input_ids": ids}).startswith("input_ids")


def test_a_batch_and_a_text_are_told_what_to_send_instead() -> None:
    assert refusal({"input_ids": [[1], [2]]}) == (
        "the body: input_ids is a batch: send one request for each prompt"
    )
    assert refusal({"text": "hello"}) == (
        "the body: text is not taken: send the prompt as input_ids, a list of token ids"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(
    [
        *GenerateRequest.model_fields,
        *SamplingParams.model_fields,
        "seed",
        "n",
        "logit_bias",
        "text",
        "stop_regex",
    ]
)


@given(st.dictionaries(field_names, json_values) | json_values)
def test_any_json_is_a_request_or_an_invalid_one(body: Any) -> None:
    for candidate in (body, {"input_ids": [1], "sampling_params": body}):
        with contextlib.suppress(InvalidRequest):
            assert parse_request(candidate).input_ids
