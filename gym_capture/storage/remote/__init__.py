"""Sealed runs that lie elsewhere: on any file system that pyarrow knows, named by a URI (`s3://bucket/runs/7`).

`run_uri` says what is such a URI, and needs no pyarrow. `RemoteFolder` reads and writes whole files there, `Contents`
lists what a run consists of, and `RemoteFiles` is `Files` over both, to be read only. Runs are carried there by
`directory.carrying`; `docs/decisions/0019-sealed-runs-elsewhere.md` says why it is done so.
"""
