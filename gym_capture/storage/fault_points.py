"""Names of the steps that make something durable, each announced before and after it happens.

A caller of `Files` says what a call is for (`RUN`, `APPEND`, ...); the call announces its steps under that label
through the `FaultHook`: `before append`, `after append`, `before owner-rename`, ... A test stops, fails or races an
owner exactly there.
"""

from __future__ import annotations

RUN = "run"
EPOCH = "epoch"
TOKEN = "token"
OWNER = "owner"
OWNER_CHECK = "owner-check"
BEAT = "beat"
STOP = "stop"
SEGMENT = "segment"
APPEND = "append"
SYNC = "sync"
COPY_APPEND = "copy-append"
COPY_SYNC = "copy-sync"
CUT_APPEND = "cut-append"
CUT_SYNC = "cut-sync"
CHECKPOINT = "checkpoint"
"""Labels that callers give to the calls of `Files` and `AppendFile`."""

REPAIR_ASIDE = "repair-aside"
REPAIR_WRITE = "repair-write"
REPAIR_RENAME = "repair-rename"
REPAIR_FILE = "repair-file"
"""Labels of a repair's own calls; the epoch that it takes has the others."""

SEALED_FILE = "sealed-file"
SEALED_APPEND = "sealed-append"
SEALED_SYNC = "sealed-sync"
SEALED_MANIFEST = "sealed-manifest"
"""Labels of sealing: the creation, the appends and the sync of each file of a part, and the manifest that lists it."""

SEALED_CLOSE = "sealed-close"
SEALED_SWITCH = "sealed-switch"
SEALED_REMOVE = "sealed-remove"
"""Labels of sealing a run: the file that closes its log, the one that shows readers the dataset, and the removal of
each segment."""

REMOTE_FILE = "remote-file"
REMOTE_CONTENTS = "remote-contents"
"""Labels of carrying a sealed run elsewhere: each file that is sent, and the one that lists them. Each is one step."""

CREATE_STEPS = ("write", "sync", "link", "directory-sync")
"""Steps of `Files.create`, in order."""
REPLACE_STEPS = ("write", "sync", "rename", "directory-sync")
"""Steps of `Files.replace`, in order."""
CREATE_APPEND_STEPS = ("create", "directory-sync")
"""Steps of `Files.create_append`, in order. All other calls are one step, named as their label."""
SET_ASIDE_STEPS = ("link", "directory-sync")
"""Steps of `MendableFiles.set_aside`, in order."""
RENAME_STEPS = ("rename", "directory-sync")
"""Steps of `MendableFiles.rename`, in order."""


def step(label: str, name: str) -> str:
    """The name of one step of a call with several."""
    return f"{label}-{name}"


def before(name: str) -> str:
    """The fault point before a step."""
    return f"before {name}"


def after(name: str) -> str:
    """The fault point after a step."""
    return f"after {name}"


STEPS: tuple[str, ...] = (
    *(step(label, name) for label in (RUN, EPOCH, TOKEN, CHECKPOINT) for name in CREATE_STEPS),
    *(step(label, name) for label in (OWNER, STOP) for name in REPLACE_STEPS),
    *(step(SEGMENT, name) for name in CREATE_APPEND_STEPS),
    COPY_APPEND,
    COPY_SYNC,
    CUT_APPEND,
    CUT_SYNC,
    APPEND,
    SYNC,
    OWNER_CHECK,
    BEAT,
)
"""Every step."""

ALL: tuple[str, ...] = tuple(point for name in STEPS for point in (before(name), after(name)))
"""Every fault point of an owner."""

REPAIR_STEPS: tuple[str, ...] = (
    *(step(REPAIR_ASIDE, name) for name in SET_ASIDE_STEPS),
    *(step(REPAIR_WRITE, name) for name in CREATE_APPEND_STEPS),
    REPAIR_WRITE,
    *(step(REPAIR_RENAME, name) for name in RENAME_STEPS),
    *(step(REPAIR_FILE, name) for name in REPLACE_STEPS),
)
"""Every step of a repair that an owner's life has not."""

SEALING_STEPS: tuple[str, ...] = (
    *(step(SEALED_FILE, name) for name in CREATE_APPEND_STEPS),
    SEALED_APPEND,
    SEALED_SYNC,
    *(step(SEALED_MANIFEST, name) for name in REPLACE_STEPS),
)
"""Every step of writing a dataset."""

CLOSING_STEPS: tuple[str, ...] = (
    *(step(label, name) for label in (SEALED_CLOSE, SEALED_SWITCH) for name in CREATE_STEPS),
    SEALED_REMOVE,
)
"""Every step of sealing a run after that; the epoch that it takes has the others."""
