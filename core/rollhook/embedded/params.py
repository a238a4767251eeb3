"""What a /generate body may say, checked before anything runs.

Invariant: a field the engine cannot honour is refused with a sentence that names it; only the value at which
an SGLang field has no effect passes. Nothing a client asked for is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

_MIN_SEED, _MAX_SEED = -(2**63), 2**63 - 1

# SGLang's other fields, with the values at which they change nothing. null always means the default.
_NEUTRAL_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_new_tokens": (0,),
    "n": (1,),
    "beam_width": (1,),
    "json_schema": ("",),
    "regex": ("",),
    "ebnf": ("",),
    "structural_tag": ("",),
    "stop_regex": ("", []),
    "logit_bias": ({},),
    "custom_params": ({},),
    "stream_interval": (1,),
    "watermark": (),
}
_NEUTRAL_REQUEST: Mapping[str, tuple[Any, ...]] = {
    "text": (),
    "input_embeds": (),
    "image_data": ([],),
    "video_data": ([],),
    "audio_data": ([],),
    "logprob_start_len": (-1,),
    "top_logprobs_num": (0,),
    "token_ids_logprob": ([],),
    "return_text_in_logprobs": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "lora_path": (),
    "custom_logit_processor": (),
    "priority": (),
    "require_reasoning": (False,),
}


class InvalidRequest(ValueError):
    """A request that cannot be served as it is; its text is one sentence for the client."""


class SamplingParams(BaseModel):
    """One request's sampling, with SGLang's names and defaults.

    temperature 0 is greedy. max_new_tokens None means up to the model's context. `seed` is another name of
    SGLang's `sampling_seed`. As in SGLang, ignore_eos also disables stop_token_ids, and no_stop_trim keeps a
    matched stop string or token in the text.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    max_new_tokens: int | None = Field(default=128, ge=1)
    stop: str | list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    sampling_seed: int | None = Field(default=None, ge=_MIN_SEED, le=_MAX_SEED)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = _without_neutral(data, _NEUTRAL_SAMPLING, keep_null=("max_new_tokens",))
        if "seed" in fields:
            seed = fields.pop("seed")
            if fields.setdefault("sampling_seed", seed) != seed:
                raise ValueError("seed and sampling_seed are two names of one setting and they differ")
        return fields

    @field_validator("top_k")
    @classmethod
    def _top_k_names_a_count(cls, top_k: int) -> int:
        if top_k == 0:
            raise ValueError("top_k must be -1 (off) or at least 1")
        return top_k

    @field_validator("stop")
    @classmethod
    def _stop_says_something(cls, stop: str | list[str]) -> list[str]:
        strings = [stop] if isinstance(stop, str) else stop
        if "" in strings:
            raise ValueError("an empty stop string would match at once")
        return strings

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings, in the order they are tried."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def greedy(self) -> bool:
        """Whether temperature says "the most likely token" (below SGLang's threshold)."""
        return self.temperature < 1e-6


class GenerateRequest(BaseModel):
    """A body of POST /generate: one prompt, as token ids."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    input_ids: list[int] = Field(min_length=1)
    sampling_params: SamplingParams = Field(default_factory=SamplingParams)
    return_logprob: bool = False
    stream: bool = False
    rid: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("text") is not None:
            raise ValueError("text is not taken: send the prompt as input_ids, a list of token ids")
        ids = data.get("input_ids")
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            raise ValueError("input_ids is a batch: send one request for each prompt")
        return _without_neutral(data, _NEUTRAL_REQUEST)


def parse_request(body: Any) -> GenerateRequest:
    """The request a decoded JSON body stands for. Raises InvalidRequest."""
    try:
        return GenerateRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "is not a field the embedded engine knows"
        raise InvalidRequest(f"{where}: {message}") from error


def _without_neutral(
    data: dict[str, Any], neutral: Mapping[str, tuple[Any, ...]], keep_null: tuple[str, ...] = ()
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in data.items():
        if value is None and name not in keep_null:
            continue
        if name not in neutral:
            kept[name] = value
        elif value not in neutral[name]:
            allowed = " or ".join(["null", *map(repr, neutral[name])])
            raise ValueError(f"{name} is {value!r}, and the embedded engine can honour only {allowed}")
    return kept
