"""The sealed dataset: finished rollouts as Parquet files, exchanges byte for byte, found without reading the rest.

`writer.SealedWriter` and `reader.SealedReader` need pyarrow (the extra `parquet`); `manifest` does not. The format is
described in `docs/format.md`.
"""
