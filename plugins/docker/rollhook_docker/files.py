"""Reading and writing in a container by its own shell and tar.

Invariant: an archive holds files, folders and links alone, and what goes wrong is the OSError that the same
operation here would raise.
"""

from __future__ import annotations

import errno
import io
import os
import tarfile

# Scripts take the path as $1 and exit with an errno.
READ = (
    '[ -e "$1" ] || exit 2; [ -d "$1" ] && exit 21; [ -f "$1" ] || exit 22; [ -r "$1" ] || exit 13; '
    'cat < "$1"'
)
WRITE = (
    '[ -d "$1" ] && exit 21; [ ! -e "$1" ] || [ -f "$1" ] || exit 22; mkdir -p "$(dirname "$1")" || exit 13; '
    'true >> "$1" || exit 13; cat > "$1" || exit 28'
)
PACK = '[ -e "$1" ] || exit 2; [ -d "$1" ] || exit 20; cd "$1" || exit 13; tar -cf - . || exit 5'
UNPACK = 'mkdir -p "$1" || exit 13; cd "$1" || exit 13; tar -xof - || exit 5'

SAID_BYTES = 1 << 16
_KNOWN = {errno.ENOENT, errno.EIO, errno.EACCES, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENOSPC}


def shell_path(path: str) -> str:
    """`path` as no command takes it for an option."""
    return path if path.startswith("/") else f"./{path}"


def failure(code: int, path: str, said: bytes) -> OSError:
    """What a script's exit code means."""
    if code in _KNOWN:
        return OSError(code, os.strerror(code), path)
    return OSError(errno.EIO, said.decode(errors="replace").strip() or f"exit code {code}", path)


def cleaned(archive: bytes) -> bytes:
    """`archive` without what is no file, folder or link. Raises OSError for what is no archive."""
    kept = io.BytesIO()
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(archive)) as source,
            tarfile.open(fileobj=kept, mode="w") as target,
        ):
            for entry in source:
                if entry.isreg():
                    target.addfile(entry, source.extractfile(entry))
                elif entry.isdir() or entry.issym() or entry.islnk():
                    target.addfile(entry)
    except tarfile.TarError as error:
        raise OSError(errno.EIO, f"what came out is no archive: {error}") from error
    return kept.getvalue()
