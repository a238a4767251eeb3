"""slime's launch scripts as data: what a script starts, and with which flags.

A script is run by bash, with stand-ins for the programs that it starts; they write down how they were called.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from tests.contracts.pages import ROOT

SCRIPTS = sorted((ROOT / "examples" / "slime").glob("*.sh"))
SECTIONS_OF_OTHERS = frozenset({"Megatron", "algorithm", "models and checkpoints", "cluster"})
"""Sections of slime_flags.txt that are about training alone."""

SEPARATOR = "\x1f"
LOGGED = f'printf "%s{SEPARATOR}" "${{0##*/}}" "$@" >> "$CALLS"; echo >> "$CALLS"'
STAND_INS = {
    "ray": LOGGED,
    "rollhook": LOGGED,
    "rollhook-search-r1": f"{LOGGED}; exec sleep 60",
    "curl": 'grep -q "rollhook-search-r1" "$CALLS"',
}
MODEL_SCRIPT = "MODEL_ARGS=(--num-layers 36 --hidden-size 2560)\n"

KINDS: dict[str, dict[str, Any]] = {
    "flag": {"action": "store_true"},
    "str": {},
    "int": {"type": int},
    "float": {"type": float},
    "many": {"nargs": "+"},
    "json": {"type": json.loads},
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One script's job. program: train.py or train_async.py. words: what follows it. calls: all that was
    started, in order, as argument lists."""

    script: Path
    program: str
    words: list[str]
    calls: list[list[str]]

    @property
    def flags(self) -> list[str]:
        return [word for word in self.words if word.startswith("--")]

    def args(self) -> SimpleNamespace:
        """slime's args once its servers run: the flags, the custom configuration, and the routers."""
        args = SimpleNamespace(**vars(slime_parser().parse_args(self.words)))
        for key, value in (load(args.custom_config_path) or {}).items():
            setattr(args, key, value)
        models = load(args.sglang_config)["sglang"] if args.sglang_config else [{"name": "default"}]
        args.sglang_model_routers = {
            model["name"]: ("127.0.0.1", 3000 + place) for place, model in enumerate(models)
        }
        args.sglang_router_ip, args.sglang_router_port = next(iter(args.sglang_model_routers.values()))
        return args

    def started(self, program: str) -> list[list[str]]:
        """The arguments of each call of `program`."""
        return [call[1:] for call in self.calls if call[0] == program]


def load(path: str) -> Any:
    return yaml.safe_load(Path(path).read_text(encoding="utf-8"))


def known_flags() -> Iterator[tuple[str, str, str]]:
    """Section, name and kind of each flag of slime."""
    section = ""
    for line in Path(__file__).with_name("slime_flags.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line[1:].strip()
        else:
            name, kind = line.split()
            yield section, f"--{name}", kind


def slime_parser() -> argparse.ArgumentParser:
    """Parses what slime does, and raises argparse.ArgumentError for what it does not."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
    for _, name, kind in known_flags():
        parser.add_argument(name, **KINDS[kind])
    return parser


def launched(script: Path, workspace: Path, **environment: str) -> Launch:
    """Run a script in `workspace`, and read what it started. environment: what the user sets."""
    programs, slime = workspace / "bin", workspace / "slime"
    for name, does in STAND_INS.items():
        _write(programs / name, f"#!/bin/bash\n{does}\n").chmod(0o755)
    _write(slime / "scripts" / "models" / "qwen3-4B.sh", MODEL_SCRIPT)
    log = _write(workspace / "calls", "")
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    ran = subprocess.run(
        ["/bin/bash", str(script)],
        cwd=workspace,
        env={"PATH": path, "HOME": str(workspace), "CALLS": str(log), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, f"{script.name}: {ran.stderr}"
    calls = [line.split(SEPARATOR)[:-1] for line in log.read_text().splitlines()]
    [job] = [call for call in calls if call[:3] == ["ray", "job", "submit"]]
    python, program, *words = job[job.index("--") + 1 :]
    assert python == "python3"
    return Launch(script, program, words, calls)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
