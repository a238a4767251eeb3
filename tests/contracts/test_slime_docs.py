"""docs/slime.md and examples/slime hold together: flags, functions, configurations, data, sums of GPUs."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import CliRunner

from rollhook import RunConfig
from rollhook.cli import main
from tests.contracts.launches import (
    SCRIPTS,
    SECTIONS_OF_OTHERS,
    Launch,
    known_flags,
    launched,
    load,
    slime_parser,
)
from tests.contracts.pages import ROOT, fences, first_column, sections

PAGE = ROOT / "docs" / "slime.md"
KNOWN = {name for _, name, _ in known_flags()}

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])


@pytest.fixture(scope="module", params=SCRIPTS, ids=[script.stem for script in SCRIPTS])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launched(request.param, tmp_path_factory.mktemp(request.param.stem))


def test_there_is_a_script_for_each_kind_of_run() -> None:
    assert [script.stem for script in SCRIPTS] == ["fully_async", "multi_agent", "retool", "search-r1"]


def test_every_flag_is_slimes_and_given_once(launch: Launch) -> None:
    assert [flag for flag in launch.flags if flag not in KNOWN] == []
    assert [flag for flag, count in Counter(launch.flags).items() if count > 1] == []
    slime_parser().parse_args(launch.words)  # every value is of its flag's type


def test_the_trainers_flags_and_the_file_make_a_run_configuration(launch: Launch) -> None:
    config = RunConfig.from_args(launch.args())

    assert config.engine == "http://127.0.0.1:3000"
    assert config.router_policy == "consistent_hashing"


TAKEN = {
    "custom_generate_function_path": ["args", "sample", "sampling_params", "evaluation"],
    "custom_rm_path": ["args", "sample"],
    "custom_reward_post_process_path": ["args", "samples"],
    "dynamic_sampling_filter_path": ["args", "samples"],
    "rollout_function_path": ["args", "rollout_id", "data_source", "evaluation"],
}
"""What slime passes to the function behind each flag: to generate and rollout functions by these names."""

AWAITED = {"custom_generate_function_path", "custom_rm_path"}


def test_dotted_paths_lead_to_functions_that_take_what_slime_passes(launch: Launch) -> None:
    args = vars(launch.args())
    paths = {flag: args[flag] for flag in TAKEN if args[flag] is not None}

    assert set(paths) >= {
        "custom_generate_function_path",
        "custom_rm_path",
        "custom_reward_post_process_path",
    }
    for flag, path in paths.items():
        module, _, name = path.rpartition(".")
        function = getattr(importlib.import_module(module), name)
        names = list(inspect.signature(function).parameters)
        assert names[: len(TAKEN[flag])] == TAKEN[flag], path
        assert asyncio.iscoroutinefunction(function) == (flag in AWAITED), path


RULES: dict[str, Callable[[Any], object]] = {
    "a step takes whole batches": lambda a: (
        a.rollout_batch_size * a.n_samples_per_prompt % a.global_batch_size == 0
    ),
    "a group can be compared": lambda a: a.n_samples_per_prompt > 1,
    "the data come in the keys that rollhook check reads": lambda a: (
        (a.input_key, a.label_key, a.metadata_key) == ("prompt", "label", "metadata")
    ),
    "prompts are rendered by rollhook": lambda a: not a.apply_chat_template,
    "over-sampling draws at least a batch": lambda a: (
        a.over_sampling_batch_size is None or a.over_sampling_batch_size >= a.rollout_batch_size
    ),
    "a conversation fits on one GPU": lambda a: (
        a.max_tokens_per_gpu * a.context_parallel_size >= a.rollout_max_context_len
    ),
    "a turn fits into a conversation": lambda a: a.rollout_max_response_len < a.rollout_max_context_len,
    "what is evaluated has data": lambda a: bool(a.eval_interval) == bool(a.eval_prompt_data),
    "what is saved has a place": lambda a: a.save or not a.save_interval,
    "one kind of KL": lambda a: not (a.kl_coef and a.kl_loss_coef),
    "a reference is loaded where a KL is asked for": lambda a: a.ref_load or not a.use_kl_loss,
    "rollout log-probabilities are used in one way": lambda a: not (a.use_tis and a.use_rollout_logprobs),
    "engines are slime's or others'": lambda a: not (a.sglang_config and a.rollout_external_engine_addrs),
    "prefill is configured once": lambda a: not (a.sglang_config and a.prefill_num_servers),
    "colocated engines take the trainer's GPUs": lambda a: not (a.colocate and a.rollout_num_gpus),
    "partial rollouts need one sample": lambda a: (
        not a.partial_rollout or a.rollhook["return_shape"] == "sample"
    ),
    "kept tokens are masked only where there are some": lambda a: (
        a.partial_rollout or not a.mask_offpolicy_in_partial_rollout
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_flags_agree(launch: Launch, rule: str) -> None:
    assert RULES[rule](launch.args())


def test_asynchronous_rollouts_have_the_asynchronous_trainer_and_gpus_of_their_own(launch: Launch) -> None:
    args = launch.args()
    runs_ahead = "async" in (args.rollout_function_path or "")

    assert launch.program == ("train_async.py" if runs_ahead else "train.py")
    assert not (runs_ahead and args.colocate)
    assert args.use_tis or not runs_ahead, "samples of older weights need a correction"


def test_gpus_add_up(launch: Launch) -> None:
    args = launch.args()
    [start] = launch.started("ray")[:1]
    there = int(start[start.index("--num-gpus") + 1])
    training = args.actor_num_nodes * args.actor_num_gpus_per_node
    sampling = training if args.colocate else args.rollout_num_gpus

    assert there == training + (0 if args.colocate else sampling)
    assert training % (args.tensor_model_parallel_size * args.context_parallel_size) == 0
    for gpus, each in engine_groups(args):
        assert gpus % each == 0
    assert sampling == sum(gpus for gpus, _ in engine_groups(args))


def engine_groups(args: SimpleNamespace) -> Iterator[tuple[int, int]]:
    """GPUs of each group of engines, and of each engine in it."""
    if not args.sglang_config:
        gpus = args.rollout_num_gpus or args.actor_num_nodes * args.actor_num_gpus_per_node
        yield gpus, args.rollout_num_gpus_per_engine
        return
    for model in load(args.sglang_config)["sglang"]:
        for group in model["server_groups"]:
            yield group["num_gpus"], group.get("num_gpus_per_engine", args.rollout_num_gpus_per_engine)


MODEL_KEYS = {"name", "model_path", "update_weights", "num_gpus_per_engine", "server_groups"}
GROUP_KEYS = {"worker_type", "num_gpus", "num_gpus_per_engine", "overrides"}
WORKER_TYPES = {"regular", "prefill", "decode", "placeholder", "encoder"}


def check_sglang_config(config: Any) -> None:
    """As slime reads it."""
    assert set(config) == {"sglang"}
    names = [model["name"] for model in config["sglang"]]
    assert len(set(names)) == len(names)
    assert [model["name"] for model in config["sglang"] if model.get("update_weights")] == names[:1]
    for model in config["sglang"]:
        assert set(model) <= MODEL_KEYS
        types = [group["worker_type"] for group in model["server_groups"]]
        assert set(types) <= WORKER_TYPES
        assert ("prefill" in types) == ("decode" in types)
        assert all(set(group) <= GROUP_KEYS and group["num_gpus"] > 0 for group in model["server_groups"])


def test_the_engines_files_are_slimes_form_and_the_first_model_is_the_one_that_trains(launch: Launch) -> None:
    path = launch.args().sglang_config
    if path is not None:
        check_sglang_config(load(path))


@every_script
def test_files_that_the_user_names_are_found_from_where_slime_runs(script: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rollhook: {seed: 3}")
    files = {"CONFIG": "mine.yaml", "DATA": "mine.jsonl", "EVAL_DATA": "held-out.jsonl", "MODEL": "/models/m"}
    args = launched(script, tmp_path, **files).args()

    assert args.rollhook == {"seed": 3}
    assert args.prompt_data == str(tmp_path / "mine.jsonl")
    assert args.eval_prompt_data[1] == str(tmp_path / "held-out.jsonl")
    assert (args.hf_checkpoint, args.ref_load) == ("/models/m", "/models/m_torch_dist")


def test_models_that_a_run_names_are_served(launch: Launch) -> None:
    args = launch.args()

    assert set(args.rollhook.get("models", ())) <= set(args.sglang_model_routers)


def test_every_file_of_the_folder_belongs_to_a_script() -> None:
    named = "\n".join(script.read_text() for script in SCRIPTS)
    files = [path.name for path in (ROOT / "examples" / "slime").iterdir() if path.suffix != ".sh"]

    assert [name for name in files if name not in named and name != "README.md"] == []


def test_what_a_script_checks_first_is_its_data_and_holds(launch: Launch) -> None:
    args = launch.args()
    checks = launch.started("rollhook")

    assert [check[1] for check in checks] == [args.prompt_data, args.eval_prompt_data[1]]
    for check in checks:
        assert check[2:] == ["--config", args.custom_config_path]
        result = CliRunner().invoke(main, check)
        assert result.exit_code == 0, result.output


def test_services_listen_where_the_run_looks_for_them(launch: Launch) -> None:
    looked_for = {urlsplit(url).port for url in urls(launch.args().rollhook.get("settings"))}
    served = [call for call in launch.started("rollhook-search-r1") if call[0] == "serve"]
    options = [option for call in launch.calls if call[0] == "ray" for option in call]
    dashboard = options[options.index("--dashboard-port") + 1]

    assert looked_for == {int(call[call.index("--port") + 1]) for call in served}
    assert options[options.index("--address") + 1] == f"http://127.0.0.1:{dashboard}"


def urls(settings: Any) -> Iterator[str]:
    for value in settings.values() if isinstance(settings, dict) else ():
        if isinstance(value, str) and value.startswith("http"):
            yield value
        yield from urls(value)


def test_what_the_page_says_of_scripts_and_files_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert [path.name for path in SCRIPTS if f"](../examples/slime/{path.name})" not in text] == []


def test_flags_on_the_page_are_slimes_and_those_of_the_scripts_are_explained(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))
    of_others = {"--config", "--engine", "--out", "--tokenizer"}  # rollhook's
    of_others |= {"--enable-return-routed-experts", "--security-opt"}  # SGLang's own, docker's
    used = {
        flag for place, script in enumerate(SCRIPTS) for flag in launched(script, tmp_path / str(place)).flags
    }
    about_training = {name for section, name, _ in known_flags() if section in SECTIONS_OF_OTHERS}

    assert said - KNOWN - of_others == set()
    assert used - about_training - said == set()


def test_snippets_of_flags_on_the_page_parse() -> None:
    for fence in fences(PAGE):
        if fence.language == "bash":
            slime_parser().parse_args(shlex.split(fence.text, comments=True))


def test_snippets_of_engines_files_on_the_page_are_slimes_form() -> None:
    found = [yaml.safe_load(fence.text) for fence in fences(PAGE) if "sglang-config" in fence.words]

    assert found
    for config in found:
        check_sglang_config(config)


def messages() -> list[str]:
    """Every string of the core; what is filled in later is `…`."""
    found = []
    for path in sorted((ROOT / "core" / "rollhook").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sd]", "…", node.value))
    return found


def test_the_sentences_to_look_up_are_those_that_are_said() -> None:
    said = messages()
    listed = first_column(sections(PAGE)["When something is said"])

    assert len(listed) >= 10
    assert [sentence for sentence in listed if not any(sentence in message for message in said)] == []
