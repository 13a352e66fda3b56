"""The capture directory: files, segments, ownership, recovery, reading."""
