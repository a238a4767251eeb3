"""docs/interface.md says what the code says, and nothing else: names, flags, codes, keys, fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import rollhook
import rollhook.adapters
import rollhook.testing
from rollhook import (
    Event,
    Plugins,
    RolloutError,
    RolloutSpec,
    RunConfig,
    Runtime,
    Sample,
    builtin,
    run_rollout,
)
from rollhook.cli import Failure, main
from rollhook.cli.run import INTERRUPTED
from rollhook.export import export_run
from rollhook.hookspecs import HookSpecs
from rollhook.limits import Limits
from rollhook.names import PUBLISHED_PLUGINS
from rollhook.pace import Pace
from rollhook.parsing import REASONING_PARSERS, TOOL_PARSERS
from rollhook.plugins import ENTRY_POINT_GROUP, ITEM_LISTS, builtin_plugin
from rollhook.registry import PLURAL
from rollhook.slime.eval_flags import EvalFlags
from rollhook.slime.flags import RolloutFlags
from rollhook.slime.reward_flags import RewardFlags
from rollhook.store import RunRecord, RunStore
from rollhook.testing import ScriptedEngine, fixtures
from rollhook.testing.tokenizers import SOURCES
from rollhook.version import __version__
from tests.contracts.introspection import (
    all_commands,
    call_form,
    field_rows,
    members,
    model_rows,
    options,
    pairs,
)
from tests.contracts.pages import ROOT, first_column, sections, table

PAGE = ROOT / "docs" / "interface.md"
SECTIONS = sections(PAGE)


def documented(section: str) -> list[list[str]]:
    """A section's table without its last column, the meaning."""
    return [row[:-1] for row in table(SECTIONS[section])]


NAME_SECTIONS = ("Running", "Writing plugins", "Protocols", "Data that passes between them", "Errors")


def test_the_page_lists_every_name_of_rollhook_once() -> None:
    names = [name for section in NAME_SECTIONS for name in first_column(SECTIONS[section])]

    assert sorted(rollhook.__all__) == sorted(names)
    assert rollhook.__all__ == sorted(rollhook.__all__)


def test_errors_are_listed_with_their_base_and_stage() -> None:
    errors = {
        name: [value.__bases__[0].__name__, value.stage if issubclass(value, RolloutError) else ""]
        for name in rollhook.__all__
        if isinstance(value := getattr(rollhook, name), type) and issubclass(value, Exception)
    }

    assert errors == {row[0]: row[1:] for row in documented("Errors")}


def test_each_hook_has_its_exact_signature_as_a_heading() -> None:
    hooks = [
        f"{name}() -> {inspect.signature(value).return_annotation}"
        for name, value in vars(HookSpecs).items()
        if name.startswith("rollhook_")
    ]

    assert hooks == [title for title in SECTIONS if re.match(r"rollhook_\w+\(", title)]


def test_the_entry_point_group_is_named() -> None:
    assert f"`{ENTRY_POINT_GROUP}`" in PAGE.read_text()


PROTOCOLS = pairs(rollhook, protocol=True)


@pytest.mark.parametrize(("name", "kind"), PROTOCOLS, ids=[name for name, _ in PROTOCOLS])
def test_the_members_of_a_protocol_are_as_the_page_says(name: str, kind: type) -> None:
    assert members(kind) == first_column(SECTIONS[f"{name} members"])


DATACLASSES = [*pairs(rollhook, protocol=False), *pairs(rollhook.testing, protocol=False)]
MARKS = ("RunOnly", "RowMay")


@pytest.mark.parametrize(("name", "kind"), DATACLASSES, ids=[name for name, _ in DATACLASSES])
def test_the_fields_of_a_dataclass_are_as_the_page_says(name: str, kind: type) -> None:
    rows = field_rows(kind)
    if issubclass(kind, rollhook.ItemSpec) and kind is not rollhook.ItemSpec:
        inherited = len(dataclasses.fields(rollhook.ItemSpec))
        adds = documented(f"{name} adds") if f"{name} adds" in SECTIONS else []

        assert rows[inherited:] == adds
    elif name == "Fault":
        constructors = [entry for entry in members(kind) if entry.endswith(")")]

        assert constructors == first_column(SECTIONS["Fault constructors"])
    else:
        assert rows == (documented(f"{name} fields") if name not in MARKS else [])


@pytest.mark.parametrize("kind", [RunConfig, Plugins])
def test_the_methods_of_a_class_are_as_the_page_says(kind: type) -> None:
    assert members(kind) == first_column(SECTIONS[f"{kind.__name__} methods"])


def test_constructors_are_as_the_page_says() -> None:
    running = [call_form("Runtime", Runtime.__init__), call_form("Plugins", Plugins.__init__)]
    running[1] = running[1].replace(repr(__version__), "...")
    engine = [call_form("ScriptedEngine", ScriptedEngine.__init__)]

    assert running == first_column(SECTIONS["Constructors"])
    assert engine == first_column(SECTIONS["ScriptedEngine constructor"])


def test_functions_are_shown_with_their_signatures() -> None:
    text = "\n".join(SECTIONS.values())
    functions = [rollhook.generate, rollhook.reward, rollhook.run_rollout]
    functions += [rollhook.testing.load_tokenizer, rollhook.testing.scripted_log_prob]

    assert [form for f in functions if f"`{(form := call_form(f.__name__, f))}`" not in text] == []


def test_statuses_are_as_the_page_says() -> None:
    assert [[status.name, status.value] for status in rollhook.Status] == documented("Status values")


def test_row_keys_and_limits_are_as_the_page_says() -> None:
    assert list(RolloutSpec.model_fields) == first_column(SECTIONS['metadata["rollhook"]'])
    assert model_rows(Limits) == documented("limits")


def test_the_keys_of_the_run_configuration_are_as_the_page_says() -> None:
    assert model_rows(RunConfig) == documented("Run configuration")


def test_parser_names_are_as_the_page_says() -> None:
    names = {row[0]: re.findall(r"`([^`]+)`", row[1]) for row in table(SECTIONS["Parsers"])}

    assert names == {"tool_parser": list(TOOL_PARSERS), "reasoning_parser": list(REASONING_PARSERS)}


COMMANDS = dict(all_commands(main, "rollhook"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_options_defaults_and_help_of_the_page(name: str) -> None:
    command = COMMANDS[name]
    help_text = (command.help or "").split("\n\n")[0]

    assert list(options(command)) == table(SECTIONS[name])
    assert " ".join(help_text.split()) in " ".join(SECTIONS[name].split())


def test_the_page_has_no_command_that_is_not_there() -> None:
    titled = {title for title in SECTIONS if title.startswith("rollhook ") and "--" not in title}

    assert titled == set(COMMANDS)


def test_exit_codes_are_as_the_page_says() -> None:
    codes = {0, 1, Failure.exit_code, click.UsageError.exit_code, INTERRUPTED}

    assert sorted(map(str, codes), key=int) == first_column(SECTIONS["Exit codes"])


def test_the_json_of_rollhook_plugins_has_the_keys_of_the_page() -> None:
    [row] = Plugins(entry_points=[]).describe(builtin_plugin(builtin, __version__))

    assert list(row) == first_column(SECTIONS["rollhook plugins --json"])


def test_built_in_items_are_as_the_page_says() -> None:
    built_in = builtin_plugin(builtin, __version__)
    names = {f"rollhook/{name}" for kind in ITEM_LISTS for name in getattr(built_in, kind)}

    assert names == set(first_column(SECTIONS["Built-in items"]))


def test_published_plugins_have_the_items_of_the_page() -> None:
    """The plugins of this repository, installed: `make test` does that."""
    missing = sorted(PUBLISHED_PLUGINS - set(Plugins().names()))
    assert missing == [], "install the plugins of this repository: make setup"
    kinds: dict[str, list[str]] = {}
    for name in PUBLISHED_PLUGINS:
        plugin = Plugins().load(name)
        for kind, plural in sorted(PLURAL.items()):
            for item in getattr(plugin, plural):
                kinds.setdefault(f"{name}/{item}", []).append(kind)

    assert {item: ", ".join(of) for item, of in kinds.items()} == dict(table(SECTIONS["Published plugins"]))


async def rollouts(tokenizer: Any, script: list[str], prompts: list[str]) -> tuple[list[Sample], list[Event]]:
    """Samples of rollouts scored by `number`, and what an event sink of their run saw."""
    events: list[Event] = []
    plugins = Plugins(entry_points=[])

    class Sink:
        @rollhook.hookimpl
        def rollhook_events(self) -> list[Callable[[Event], None]]:
            return [events.append]

    plugins.add("sink", Sink())
    config = RunConfig(plugins=("sink",), default={"verifier": "number"})
    samples = []
    async with ScriptedEngine(tokenizer, script) as engine:
        config = config.model_copy(update={"engine": engine.url})
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            for index, label in enumerate(prompts):
                samples += await run_rollout(runtime, Sample(index=index, prompt="2 + 2?", label=label), {})
    return samples, events


async def test_results_and_events_have_the_keys_of_the_page(smollm2_tokenizer: Any) -> None:
    samples, events = await rollouts(smollm2_tokenizer, ["4", "4"], ["4", "not a number"])
    completed, failed = (sample.metadata["rollhook_result"] for sample in samples)
    kinds = {event.kind: list(event.data) for event in events}

    assert set(completed) == set(first_column(SECTIONS['metadata["rollhook_result"]']))
    assert set(failed) == set(completed)
    assert list(failed["error"]) == first_column(SECTIONS['rollhook_result["error"]'])
    assert kinds == {row[0]: re.findall(r"\w+", row[1]) for row in table(SECTIONS["Events"])}


def test_an_export_has_the_fields_and_types_of_the_page(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with RunStore(tmp_path / "run", RunRecord({})) as store:
        store.append(0, [Sample(index=0, rollout_id=0)])
    export_run(tmp_path / "run", tmp_path / "out.jsonl")
    export_run(tmp_path / "run", tmp_path / "out.parquet")
    [row] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    schema = parquet.read_schema(tmp_path / "out.parquet")
    rows = table(SECTIONS["Export fields"])
    text = {"JSON text": "string", "scalar, else JSON text": None}

    assert list(row) == [name for name, _ in rows]
    assert schema.names == [name for name, _ in rows]
    for name, kind in rows:
        wanted = text.get(kind, kind)
        assert wanted in (None, str(schema.field(name).type).replace("element:", "item:")), name


def test_a_runs_directory_has_the_files_and_keys_of_the_page(tmp_path: Path) -> None:
    with RunStore(tmp_path, RunRecord({})):
        files = sorted(entry.name for entry in tmp_path.iterdir())
    rows = {row[0]: row[1] for row in table(SECTIONS["A run's directory"])}

    assert files == sorted(rows)
    for key in json.loads((tmp_path / "run.json").read_text()):
        assert f"`{key}`" in rows["run.json"]


def test_the_names_of_rollhook_adapters_are_as_the_page_says() -> None:
    assert sorted(rollhook.adapters.__all__) == sorted(first_column(SECTIONS["rollhook.adapters"]))


def test_the_names_of_rollhook_testing_are_as_the_page_says() -> None:
    assert sorted(rollhook.testing.__all__) == sorted(first_column(SECTIONS["rollhook.testing"]))
    assert list(SOURCES) == first_column(SECTIONS["Tokenizers"])


def test_pytest_fixtures_are_as_the_page_says() -> None:
    tree = ast.parse(inspect.getsource(fixtures))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = [f.name for f in functions if any("fixture" in ast.unparse(d) for d in f.decorator_list)]

    assert names == first_column(SECTIONS["Pytest fixtures"])
    assert "rollhook" in {found.name for found in metadata.entry_points(group="pytest11")}


def test_the_attributes_of_a_scripted_engine_and_its_requests_are_as_the_page_says(
    smollm2_tokenizer: Any,
) -> None:
    engine = ScriptedEngine(smollm2_tokenizer, [])
    request = rollhook.testing.ScriptedRequest({"rid": "r", "input_ids": [1]}, {}, 0, smollm2_tokenizer)

    for thing, section in (
        (engine, "ScriptedEngine attributes"),
        (request, "ScriptedRequest attributes"),
    ):
        public = {name for name in dir(thing) if not name.startswith("_")}
        assert public == set(first_column(SECTIONS[section]))


class Recorder:
    """A trainer's args that says nothing and notes what it is asked for."""

    def __init__(self) -> None:
        object.__setattr__(self, "read", set())

    def __getattribute__(self, name: str) -> Any:
        read: set[str] = object.__getattribute__(self, "read")
        if name == "read":
            return read
        read.add(name)
        raise AttributeError(name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"a trainer's args were written to: {name}")


def test_the_attributes_read_from_a_trainers_args_are_as_the_page_says() -> None:
    args = Recorder()
    RunConfig.from_args(args)
    RewardFlags.from_args(args)

    assert args.read == set(first_column(SECTIONS["Attributes of args"]))


class Blank(Recorder):
    """A trainer's args whose every flag is there and says nothing."""

    def __getattribute__(self, name: str) -> Any:
        with suppress(AttributeError):
            return super().__getattribute__(name)
        return [SimpleNamespace(name="exam", path="exam.jsonl")] if name == "eval_datasets" else None


def test_the_attributes_that_rollout_functions_read_are_as_the_page_says() -> None:
    args, evaluated = Blank(), Blank()
    with pytest.raises(rollhook.ConfigError, match="set --rollout-batch-size"):
        RolloutFlags.from_args(args, RunConfig())
    EvalFlags.from_args(evaluated)

    assert args.read | ENGINES == set(first_column(SECTIONS["Attributes of args for rollout functions"]))
    assert evaluated.read - {"custom_generate_function_path"} == set(
        first_column(SECTIONS["Attributes of args for evaluations"])
    )


ENGINES = {"rollout_num_gpus", "rollout_num_gpus_per_engine"}
"""Read where there is a concurrency to multiply."""


def test_the_settings_of_fully_asynchronous_rollouts_are_as_the_page_says() -> None:
    assert model_rows(Pace) == documented("fully_async")


def test_dotted_paths_for_slime_resolve() -> None:
    for path in first_column(SECTIONS["Dotted paths"]):
        module, _, name = path.rpartition(".")
        assert callable(getattr(__import__(module, fromlist=[name]), name)), path


def environment_variables(source: str) -> Iterator[str]:
    """The names that a module reads from os.environ."""
    for node in ast.walk(ast.parse(source)):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        if found := re.match(r"os\.(?:environ\.get\(|environ\[|getenv\()'(\w+)'", text):
            yield found[1]


def test_environment_variables_are_as_the_page_says() -> None:
    sources = [*ROOT.glob("core/rollhook/**/*.py"), *ROOT.glob("plugins/*/rollhook_*/**/*.py")]
    names = {name for path in sources for name in environment_variables(path.read_text(encoding="utf-8"))}

    assert names - {"PATH"} == set(first_column(SECTIONS["Environment variables"]))


def test_makefile_variables_are_as_the_page_says() -> None:
    variables = re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)

    assert variables == first_column(SECTIONS["Makefile variables"])
