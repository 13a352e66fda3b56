"""File names: what is built is parsed back, what is not ours is not."""

from __future__ import annotations

from gym_capture.storage import names
from gym_capture.storage.names import SegmentName


def test_segments_sort_in_log_order_and_parse_back() -> None:
    segments = [SegmentName(1, 0), SegmentName(1, 11), SegmentName(2, 0), SegmentName(123456789, 3)]
    files = [segment.file for segment in reversed(segments)]
    assert files[-1] == "segment-00000001-00000000.log"
    assert names.segments_in(files) == segments


def test_an_epoch_counts_when_it_was_claimed_or_has_a_segment() -> None:
    listed = [
        names.epoch_file(3),
        SegmentName(5, 0).file,
        names.beat_file(9),
        names.token_file(9),
        ".epoch-00000008.x.tmp",
    ]
    assert names.epochs_in(listed) == [3, 5]


def test_nemo_gym_files_name_their_rollout() -> None:
    listed = ["a-0.capture.jsonl", "b.capture.incomplete", ".capture.jsonl", "c.jsonl"]
    assert names.nemo_gym_rollouts_in(listed) == {"a-0", "b"}
