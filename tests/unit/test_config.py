"""The run configuration: from YAML and from a trainer's args, with what is refused and why."""

from __future__ import annotations

import copy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rollhook.config import RunConfig
from rollhook.errors import ConfigError
from rollhook.limits import Limits


def load(tmp_path: Path, text: str) -> RunConfig:
    path = tmp_path / "rollhook.yaml"
    path.write_text(text)
    return RunConfig.load(path)


def load_error(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(str(tmp_path / "rollhook.yaml"), "FILE")


def args_error(**args: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_args(Namespace(**args))
    return str(caught.value)


def test_keys_stand_at_the_top_of_the_file_or_in_a_section(tmp_path: Path) -> None:
    keys = "default: search-r1\nlimits: {max_turns: 4}\nsampling: {temperature: 0.7}\n"
    section = "some_trainer_key: 3\nrollhook:\n" + "".join(f"  {line}\n" for line in keys.splitlines())
    expected = RunConfig(default="search-r1", limits=Limits(max_turns=4), sampling={"temperature": 0.7})

    assert load(tmp_path, keys) == expected
    assert load(tmp_path, section) == expected


def test_an_empty_file_and_null_keys_are_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == RunConfig()
    assert load(tmp_path, "rollhook:\n") == RunConfig()
    assert load(tmp_path, "engine:\nlimits: {max_turns: null}\n") == RunConfig()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("trust_row: true", 'FILE: trust_row: unknown key; did you mean "trust_rows"?'),
        ("limits: {max_turn: 3}", 'FILE: limits.max_turn: unknown key; did you mean "max_turns"?'),
        ("limits: {max_turns: many}", "FILE: limits.max_turns: expected a valid integer, "),
        ("limits: {timeout_s: .inf}", "FILE: limits.timeout_s: expected a finite number, got inf (float)"),
        ("return_shape: both", "FILE: return_shape: expected 'list' or 'sample', got 'both' (str)"),
        ("concurrency: 0", "FILE: concurrency: expected greater than 0, got 0 (int)"),
        ("plugins: dice", "FILE: plugins: expected a valid tuple, got 'dice' (str)"),
        ("- a\n- b", "FILE: expected a mapping of keys, got ['a', 'b']"),
        ("a: [1", "FILE: not YAML: while parsing a flow sequence"),
    ],
)
def test_a_wrong_file_is_told_with_its_key(tmp_path: Path, text: str, told: str) -> None:
    assert load_error(tmp_path, text).startswith(told)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file or directory"):
        RunConfig.load(tmp_path / "nowhere.yaml")


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().seed = 3  # type: ignore[misc]  # the test


def test_settings_stay_out_of_logs() -> None:
    assert "hunter2" not in repr(RunConfig(settings={"judge": {"api_key": "hunter2"}}))


SLIME = {
    "sglang_router_ip": "10.0.0.7",
    "sglang_router_port": 3000,
    "sglang_model_routers": {"judge": ("10.0.0.8", 3001)},
    "hf_checkpoint": "/models/qwen",
    "rollout_max_context_len": 4096,
    "rollout_max_response_len": 512,
    "rollout_temperature": 0.8,
    "rollout_top_p": 1.0,
    "rollout_top_k": -1,
    "rollout_stop": None,
    "rollout_stop_token_ids": [7],
    "rollout_seed": 42,
    "sglang_tool_call_parser": "qwen25",
    "sglang_reasoning_parser": None,
    "group_rm": False,
    "partial_rollout": False,
    "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout",
}


def test_a_trainers_args_are_read() -> None:
    assert RunConfig.from_args(Namespace(**SLIME)) == RunConfig(
        engine="http://10.0.0.7:3000",
        models={"judge": "http://10.0.0.8:3001"},
        tokenizer="/models/qwen",
        limits=Limits(max_context_tokens=4096),
        sampling={
            "max_new_tokens": 512,
            "temperature": 0.8,
            "top_p": 1.0,
            "top_k": -1,
            "stop_token_ids": [7],
        },
        seed=42,
        tool_parser="qwen25",
    )


def test_bare_args_are_the_defaults() -> None:
    assert RunConfig.from_args(Namespace()) == RunConfig()


def test_an_ipv6_router_has_its_address_in_brackets() -> None:
    config = RunConfig.from_args(Namespace(sglang_router_ip="fd00::7", sglang_router_port=3000))

    assert config.engine == "http://[fd00::7]:3000"


def test_the_section_goes_before_the_trainers_flags_key_by_key() -> None:
    section = {
        "engine": "http://other:1",
        "limits": {"max_turns": 3, "max_new_tokens": 64},
        "sampling": {"top_k": 20},
        "tool_parser": None,
    }
    config = RunConfig.from_args(Namespace(**SLIME, rollhook=section))

    assert config.engine == "http://other:1"
    assert config.limits == Limits(max_turns=3, max_new_tokens=64, max_context_tokens=4096)
    assert config.sampling == {
        "max_new_tokens": 512,
        "temperature": 0.8,
        "top_p": 1.0,
        "top_k": 20,
        "stop_token_ids": [7],
    }


def test_reading_args_changes_nothing() -> None:
    args = Namespace(**copy.deepcopy(SLIME), rollhook={"limits": {"max_turns": 3}, "sampling": {"top_k": 2}})
    before = copy.deepcopy(vars(args))
    config = RunConfig.from_args(args)
    config.sampling["top_k"] = 9

    assert vars(args) == before


def test_a_wrong_section_is_told() -> None:
    where = "the rollhook section of the configuration"

    assert args_error(rollhook="search-r1") == f"{where}: expected a mapping of keys, got 'search-r1'"
    assert args_error(rollhook={"defualt": "x"}) == f'{where}: defualt: unknown key; did you mean "default"?'
    assert args_error(rollhook={"limits": 3}).startswith(f"{where}: limits: expected a valid dictionary")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            {"group_rm": True},
            "--group-rm scores one Sample for each rollout, and return_shape: list",
        ),
        ({"partial_rollout": True}, "--partial-rollout puts single Samples back into its buffer, and"),
        ({"log_passrate": True}, "--log-passrate counts one reward for each rollout, and"),
        (
            {"rollout_function_path": "fully_async_rollout.generate_rollout_fully_async"},
            "--rollout-function-path fully_async_rollout.generate_rollout_fully_async trains aborted groups",
        ),
        (
            {"dynamic_sampling_filter_path": "slime.rollout.filter_hub.check_reward_nonzero_std"},
            "--dynamic-sampling-filter-path slime.rollout.filter_hub.check_reward_nonzero_std reads",
        ),
    ],
)
def test_what_cannot_take_lists_is_refused_with_what_to_change(args: dict[str, Any], told: str) -> None:
    error = args_error(**args)

    assert error.startswith(told)
    assert "return_shape: sample" in error
    assert (
        RunConfig.from_args(Namespace(**args, rollhook={"return_shape": "sample"})).return_shape == "sample"
    )


def test_the_projects_own_filters_and_rollout_functions_take_lists() -> None:
    RunConfig.from_args(
        Namespace(
            rollout_function_path="rollhook.slime.fully_async_rollout",
            dynamic_sampling_filter_path="rollhook.slime.keep_informative",
        )
    )


def test_what_takes_lists_is_named_where_slimes_own_is_refused() -> None:
    stock = "fully_async_rollout.generate_rollout_fully_async"

    assert "use rollhook.slime.fully_async_rollout" in args_error(rollout_function_path=stock)
    assert "use rollhook.slime.keep_informative" in args_error(dynamic_sampling_filter_path="slime.a.b")


def test_partial_rollouts_need_one_sample_however_they_are_asked_for() -> None:
    assert "return_shape: sample" in args_error(rollhook={"partial_rollout": True})

    config = RunConfig.from_args(
        Namespace(
            partial_rollout=True,
            mask_offpolicy_in_partial_rollout=True,
            rollhook={"return_shape": "sample"},
        )
    )
    assert (config.partial_rollout, config.mask_kept_tokens) == (True, True)


def test_what_the_trainer_replays_is_read_from_its_flags() -> None:
    args = {"use_rollout_routing_replay": True, "num_layers": 4, "moe_router_topk": 2, "rollout_top_p": 0.9}

    config = RunConfig.from_args(Namespace(**args))
    plain = RunConfig.from_args(Namespace(rollout_top_p=1.0))
    assert (config.top_p_replay, config.routing_replay) == (True, (4, 2))
    assert (plain.top_p_replay, plain.routing_replay) == (False, None)
    assert "set --num-layers and --moe-router-topk" in args_error(use_rollout_routing_replay=True)


def test_a_top_p_that_the_trainer_does_not_replay_is_refused() -> None:
    assert args_error(rollout_top_p=0.9, rollhook={"sampling": {"top_p": 0.5}}) == (
        "sampling.top_p is 0.5, and the trainer replays what is left by --rollout-top-p 0.9; "
        "set it only there"
    )


def test_a_temperature_that_the_trainer_does_not_know_is_refused() -> None:
    error = args_error(rollout_temperature=1.0, rollhook={"sampling": {"temperature": 0.5}})

    assert error == (
        "sampling.temperature is 0.5, and the trainer divides logits by --rollout-temperature 1.0; "
        "set it only there"
    )


def test_prompts_that_a_trainer_renders_are_refused() -> None:
    error = args_error(apply_chat_template=True)

    assert error.startswith("--apply-chat-template hands over prompts that are rendered already")
    assert "drop the flag" in error


def test_a_sampling_parameter_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r'sampling: .*"temprature" is no sampling parameter; did you mean "temperature"'
    ):
        RunConfig.of({"sampling": {"temprature": 0.5}}, where="rollhook.yaml")


def test_equal_configurations_have_equal_fingerprints_in_every_process() -> None:
    source = (
        "from rollhook.config import RunConfig\n"
        "print(RunConfig(settings={'b': {'x': 1}, 'a': {'y': [1]}}, seed=1).fingerprint())"
    )
    command = [sys.executable, "-c", source]
    other = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)

    here = RunConfig(settings={"a": {"y": [1]}, "b": {"x": 1}}, seed=1).fingerprint()
    assert other.stdout.strip() == here


def test_a_fingerprint_tells_what_differs_unless_it_is_left_out() -> None:
    one, two = RunConfig(engine="http://a:1"), RunConfig(engine="http://b:1")

    assert one.fingerprint() != two.fingerprint()
    assert one.fingerprint(exclude={"engine"}) == two.fingerprint(exclude={"engine"})
