"""Takeovers: an old owner that is slow, frozen or thawing, at every step of the new one; two takers at once."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable

import pytest

from gym_capture.errors import CaptureDirectoryError, DirectoryHeld, MissingRunMarker, Superseded
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.codec import checksum
from gym_capture.model.ledger import Ledger
from gym_capture.model.redaction_rules import RedactionRules
from gym_capture.storage import fault_points, names
from gym_capture.storage.log_scan import replay_log, scan_log
from gym_capture.storage.owner_file import Endpoint, owner_state, read_owner, read_token
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.run_marker import create_or_adopt_run, read_run
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk, FaultyFiles, Stopped
from gym_capture.testing.manual_clock import ManualClock
from tests.storage.owners import Batch, Owner, calls, exchange, identity


def batch(number: int) -> Batch:
    return Batch().commit("r", exchange(f"call-{number}"))


def fold(disk: FaultyDisk) -> Ledger:
    ledger = Ledger()
    replay_log(scan_log(disk.view()), ledger)
    return ledger


def old_owner(disk: FaultyDisk, synced: int = 2, unsynced: int = 1) -> Owner:
    owner = Owner(disk.view(), "old", segment_bytes=1200)
    for number in range(1, synced + 1):
        owner.send(batch(number), number)
    for number in range(synced + 1, synced + unsynced + 1):
        owner.append(batch(number), number)
    return owner


def takeover_points() -> list[str]:
    disk = FaultyDisk()
    old_owner(disk)
    files = disk.view()
    Owner(files, "new", takeover=True)
    return list(dict.fromkeys(files.points))


# What an old owner may do at once when it runs again; True: it told a client that call-4 is durable.
def finishes_its_group(old: Owner) -> bool:
    old.append(batch(4), 4)
    old.acknowledge(4)
    return True


def appends_and_freezes_again(old: Owner) -> bool:
    old.append(batch(4), 4)
    return False


def syncs_and_appends_more(old: Owner) -> bool:
    # Its check ran before the takeover, so it goes on to the next group without knowing.
    old.writer.sync()
    old.append(batch(4), 4)
    old.writer.sync()
    old.append(batch(5), 5)
    return False


ACTS = [finishes_its_group, appends_and_freezes_again, syncs_and_appends_more]


@pytest.mark.parametrize("remote", [False, True], ids=["same host", "another host"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_what_an_old_owner_does_during_a_takeover_is_kept_if_it_was_acknowledged_and_settled_for_good(
    act: Callable[[Owner], bool], remote: bool
) -> None:
    for point in takeover_points():
        disk = FaultyDisk()
        old = old_owner(disk)
        acked: list[str] = ["call-1", "call-2"]

        def thaw(old: Owner = old, acked: list[str] = acked) -> None:
            try:
                if act(old):
                    acked += ["call-3", "call-4"]
            except Superseded:
                pass

        files = disk.view(remote=remote)
        files.run_at(point, thaw)
        new = Owner(files, "new", takeover=True, segment_bytes=1200)
        held = calls(new.ledger, "r")
        assert set(acked) <= set(held), point
        assert held == [f"call-{number}" for number in range(1, len(held) + 1)], point

        # The old owner can acknowledge nothing any more, and what it still writes is read by nobody, ever.
        with pytest.raises(Superseded, match=r"superseded by epoch 2"):
            old.acknowledge(3)
        old.append(Batch().commit("r", exchange("ghost")), 90)
        old.writer.sync()
        for number in range(91, 99):  # into further segments too
            old.append(Batch().commit("r", exchange(f"ghost-{number}")), number)
            old.writer.sync()
        new.send(Batch().commit("r", exchange("after")), 99)
        held.append("after")
        assert calls(fold(disk), "r") == held, point
        disk.crash()
        for epoch in (3, 4):
            again = Owner(disk.view(), "new")
            assert again.ownership.epoch == epoch
            assert calls(again.ledger, "r") == held, (point, epoch)
        assert [each["model_call_id"] for each in CaptureStore(disk.view()).read("r")] == held


def test_a_takeover_that_dies_at_any_step_leaves_a_log_that_the_next_one_settles() -> None:
    for point in takeover_points():
        disk = FaultyDisk()
        old = old_owner(disk)
        files = disk.view()
        files.stop_at(point)
        with pytest.raises(Stopped):
            Owner(files, "new", takeover=True)
        # The old owner still works if (and only if) OWNER was not replaced.
        replaced = files.points.count(fault_points.after(fault_points.step(fault_points.OWNER, "rename"))) > 0
        replaced = replaced or point == fault_points.after(fault_points.step(fault_points.OWNER, "rename"))
        if replaced:
            with pytest.raises(Superseded):
                old.acknowledge(3)
        else:
            old.acknowledge(3)
        old.append(batch(4), 4)
        third = Owner(disk.view(), "third", takeover=True)
        held = calls(third.ledger, "r")
        assert held == [f"call-{number}" for number in range(1, len(held) + 1)]
        assert len(held) >= 2 + (not replaced), point
        old.writer.sync()
        old.append(batch(5), 5)
        old.writer.sync()
        assert calls(fold(disk), "r") == held, point
        assert calls(Owner(disk.view(), "third").ledger, "r") == held, point


def test_a_taker_that_froze_before_its_cuts_is_not_heard_when_it_thaws() -> None:
    disk = FaultyDisk()
    old = old_owner(disk)
    third: list[Owner] = []

    def freeze() -> None:
        # The first owner goes on to one more group; the third takes over from both, and cuts behind that group.
        old.writer.sync()
        old.append(batch(4), 4)
        third.append(Owner(disk.view(), "third", takeover=True))

    files = disk.view()
    files.run_at(fault_points.before(fault_points.CUT_APPEND), freeze)
    with pytest.raises(Superseded):
        Owner(files, "second", takeover=True)
    assert fault_points.after(fault_points.CUT_SYNC) in files.points  # it wrote its own, earlier cut
    held = ["call-1", "call-2", "call-3", "call-4"]
    assert calls(third[0].ledger, "r") == held
    assert calls(fold(disk), "r") == held
    assert calls(Owner(disk.view(), "third").ledger, "r") == held


def test_of_two_takers_exactly_one_owns_the_directory_whatever_the_order() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    probe = disk.view()
    Ownership.take(probe, identity("probe"), ManualClock(), takeover=True)
    outcomes = set()
    for point in dict.fromkeys(probe.points):
        disk = FaultyDisk()
        create_or_adopt_run(disk.view())
        taken: list[Ownership] = []

        def take(disk: FaultyDisk = disk, taken: list[Ownership] = taken) -> None:
            taken.append(Ownership.take(disk.view(), identity("b"), ManualClock(), takeover=True))

        files = disk.view()
        files.run_at(point, take)
        try:
            taken.append(Ownership.take(files, identity("a"), ManualClock(), takeover=True))
        except Superseded:
            outcomes.add("the slower one left")
        holders = []
        for each in taken:
            try:
                each.check()
                holders.append(each)
            except Superseded:
                outcomes.add("the earlier one was fenced")
        assert len(holders) == 1, point
        owner = read_owner(disk.view())
        assert owner is not None
        assert owner.epoch == holders[0].epoch == max(each.epoch for each in taken), point
    assert outcomes == {"the slower one left", "the earlier one was fenced"}


def test_an_owner_puts_its_owner_file_back_when_a_late_taker_replaced_it() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    winner: list[Ownership] = []
    slow = disk.view()
    # Just before it replaces OWNER, having found no later epoch.
    slow.run_at(
        fault_points.before(fault_points.step(fault_points.OWNER, "rename")),
        lambda: winner.append(Ownership.take(disk.view(), identity("fast"), ManualClock(), takeover=True)),
    )
    with pytest.raises(Superseded):
        Ownership.take(slow, identity("slow"), ManualClock(), takeover=True)
    owner = read_owner(disk.view())
    assert owner is not None
    assert owner.identity.actor_id == "slow"
    winner[0].publish(Endpoint("10.0.0.1", 7))
    winner[0].check()
    owner = read_owner(disk.view())
    assert owner is not None
    assert (owner.identity.actor_id, owner.epoch, owner.endpoint) == ("fast", 2, Endpoint("10.0.0.1", 7))


def test_a_taker_that_finds_itself_late_leaves_the_owner_file_alone() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    faster: list[Ownership] = []
    slow = disk.view()
    slow.run_at(
        fault_points.before(fault_points.BEAT),
        lambda: faster.append(Ownership.take(disk.view(), identity("fast"), ManualClock(), takeover=True)),
    )
    with pytest.raises(Superseded):
        Ownership.take(slow, identity("slow"), ManualClock(), takeover=True)
    faster[0].check()
    owner = read_owner(disk.view())
    assert owner is not None
    assert owner.identity.actor_id == "fast"
    assert fault_points.before(fault_points.step(fault_points.OWNER, "write")) not in slow.points


def test_another_actor_is_refused_while_the_beat_moves() -> None:
    disk = FaultyDisk()
    clock = ManualClock()
    create_or_adopt_run(disk.view())
    first = Ownership.take(disk.view(), identity("first"), clock)
    first.publish(Endpoint("10.0.0.1", 4242))
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        first.beat()

    with pytest.raises(DirectoryHeld, match=r"10\.0\.0\.1:4242.*epoch 1 moved.*takeover=True") as caught:
        Ownership.take(disk.view(), identity("second"), clock, wait=wait, beat_s=2.0)
    assert caught.value.owner.identity.actor_id == "first"
    assert caught.value.epoch == 1
    assert waited == [1.0]  # it is told as soon as the beat moves
    assert names.epochs_in(disk.view().names()) == [1]
    first.check()


def test_another_actor_takes_over_once_the_beat_stood_still_for_two_and_a_half_beats() -> None:
    disk = FaultyDisk()
    clock = ManualClock()
    create_or_adopt_run(disk.view())
    Ownership.take(disk.view(), identity("first"), clock)
    before = clock.monotonic()
    second = Ownership.take(disk.view(), identity("second"), clock, wait=clock.advance, beat_s=2.0)
    assert second.epoch == 2
    assert clock.monotonic() - before == pytest.approx(5.0)


@pytest.mark.parametrize("case", ["same actor", "stopped", "takeover"])
def test_these_take_over_at_once(case: str) -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    first = Ownership.take(disk.view(), identity("first"), ManualClock())
    first.beat()
    if case == "stopped":
        first.release(0, 0)

    def wait(seconds: float) -> None:
        raise AssertionError("nothing to wait for")

    actor = "first" if case == "same actor" else "second"
    second = Ownership.take(disk.view(), identity(actor), ManualClock(), takeover=case == "takeover", wait=wait)
    assert second.epoch == 2
    with pytest.raises(Superseded):
        first.check()


def test_a_taker_that_has_claimed_an_epoch_and_not_the_owner_file_is_seen_as_live() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    Ownership.take(disk.view(), identity("dead"), ManualClock()).release(0, 0)
    files = disk.view()
    files.stop_at(fault_points.before(fault_points.step(fault_points.OWNER, "write")))
    with pytest.raises(Stopped):
        Ownership.take(files, identity("taking"), ManualClock())

    def wait(seconds: float) -> None:
        disk.view().overwrite(names.beat_file(2), b"%020d\n" % 2, fault_points.BEAT)

    with pytest.raises(DirectoryHeld, match="beat of epoch 2"):
        Ownership.take(disk.view(), identity("third"), ManualClock(), wait=wait)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda owner: None, "maybe-live"),
        (lambda owner: owner.release(0, 0), "stopped"),
    ],
    ids=["beating", "released"],
)
def test_owner_state_says_whether_someone_lives(prepare: Callable[[Ownership], None], expected: str) -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    assert owner_state(disk.view(), lambda seconds: None) == "none"
    owner = Ownership.take(disk.view(), identity(), ManualClock())
    prepare(owner)
    beats = expected == "maybe-live"
    assert owner_state(disk.view(), lambda seconds: owner.beat() if beats else None) == expected
    assert owner_state(disk.view(), lambda seconds: None) == "stopped"


def test_an_owner_file_that_cannot_be_read_is_no_proof_of_another_owner() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    files = disk.view()
    owner = Ownership.take(files, identity(), ManualClock())
    files.fail_at(fault_points.before(fault_points.OWNER_CHECK), errno.ESTALE)
    with pytest.raises(OSError, match=r"[Ss]tale") as caught:
        owner.check()
    assert not isinstance(caught.value, Superseded)
    owner.check()
    disk.put(names.OWNER, b"\0" * 80)
    with pytest.raises(CaptureDirectoryError, match="cannot be read"):
        owner.check()
    disk.view().remove(names.OWNER)
    with pytest.raises(CaptureDirectoryError, match="is gone"):
        owner.check()


def test_a_directory_without_its_marker_is_refused_and_nothing_is_written() -> None:
    files = FaultyFiles(FaultyDisk())
    with pytest.raises(MissingRunMarker, match="not mounted"):
        Ownership.take(files, identity(), ManualClock())
    assert files.names() == []


def test_a_run_is_created_once_and_adopted_by_everyone_else() -> None:
    for point in (fault_points.before("run-link"), fault_points.after("run-write")):
        disk = FaultyDisk()
        files = disk.view()
        other: list[object] = []

        def start_too(disk: FaultyDisk = disk, other: list[object] = other) -> None:
            other.append(create_or_adopt_run(disk.view()))

        files.run_at(point, start_too)
        run = create_or_adopt_run(files)
        assert other == [run]
        assert create_or_adopt_run(disk.view()) == run == read_run(files)


def test_a_directory_whose_marker_was_lost_is_refused_before_anything_is_written() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(batch(1), 1)
    owner.stop()
    marker = disk.content(names.RUN)
    files = disk.view()
    files.remove(names.RUN)
    before = {name: disk.content(name) for name in files.names()}
    with pytest.raises(MissingRunMarker, match=f"{owner.ownership.run.hex}.*another directory") as caught:
        create_or_adopt_run(files)
    assert {name: disk.content(name) for name in files.names()} == before
    assert files.points == []
    assert caught.value.runs == [owner.ownership.run.hex]
    assert marker.decode() in str(caught.value)

    # With the file as the message has it, all is as it was.
    disk.put(names.RUN, marker)
    assert create_or_adopt_run(files) == owner.ownership.run
    assert calls(Owner(disk.view(), "second").ledger, "r") == ["call-1"]


def test_a_lost_marker_is_also_noticed_where_no_segment_can_name_the_run() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    Ownership.take(disk.view(), identity(), ManualClock())
    disk.view().remove(names.RUN)
    for segment in (None, b"", b"no header"):
        if segment is not None:
            disk.put(names.SegmentName(1, 0).file, segment)
        with pytest.raises(MissingRunMarker, match="from a copy") as caught:
            create_or_adopt_run(disk.view())
        assert caught.value.runs == []
    assert names.RUN not in disk.view().names()


def test_a_marker_that_another_start_makes_meanwhile_is_adopted_with_its_owner() -> None:
    disk = FaultyDisk()
    files = disk.view()
    other: list[Owner] = []
    real = files.read

    def made_just_afterwards(name: str, point: str | None = None) -> bytes:
        try:
            return real(name, point)
        except FileNotFoundError:
            other.append(Owner(disk.view()))
            raise

    files.read = made_just_afterwards  # type: ignore[method-assign]
    assert create_or_adopt_run(files) == other[0].ownership.run


def test_each_epoch_has_a_token_of_its_own() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    first = Ownership.take(disk.view(), identity(), ManualClock())
    second = Ownership.take(disk.view(), identity(), ManualClock())
    assert len(first.token) == 64
    assert first.token != second.token
    assert [read_token(disk.view(), epoch) for epoch in (1, 2)] == [first.token, second.token]


def test_a_released_owner_leaves_its_file_behind_and_the_next_needs_no_wait() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view(), "first")
    owner.send(batch(1), 1)
    owner.stop()
    disk.crash()
    second = Owner(disk.view(), "second", clock=ManualClock())
    assert second.clock.monotonic() == ManualClock().monotonic()
    assert calls(second.ledger, "r") == ["call-1"]
    assert second.report.tears == []


CLIENTS = ClientSettings(patience_s=7.0, redact=RedactionRules(("$..api_key",), ("sk-\\w+",)))


def test_what_clients_go_by_is_told_and_outlives_an_owner_that_says_nothing_of_it() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    first = Ownership.take(disk.view(), identity("first"), ManualClock(), client=CLIENTS)
    first.publish(Endpoint("10.0.0.1", 4242))
    first.release(0, 0)
    told = read_owner(disk.view())
    assert told is not None
    assert told.client == CLIENTS
    Ownership.take(disk.view(), identity("clears"), ManualClock()).release(0, 0)
    kept = read_owner(disk.view())
    assert kept is not None
    assert (kept.epoch, kept.client) == (2, CLIENTS)
    Ownership.take(disk.view(), identity("other"), ManualClock(), client=ClientSettings())
    changed = read_owner(disk.view())
    assert changed is not None
    assert changed.client == ClientSettings()


def test_nothing_of_a_damaged_owner_file_is_inherited() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    Ownership.take(disk.view(), identity("first"), ManualClock(), client=CLIENTS).release(0, 0)
    # Still JSON, and without the rule that it had: so a checksum has to tell it.
    disk.put(names.OWNER, disk.content(names.OWNER).replace(b'"redact"', b'"redacu"'))
    before = disk.view().names()
    for takeover, client in ((False, None), (True, None), (False, CLIENTS)):
        with pytest.raises(CaptureDirectoryError, match=r"OWNER.*gym-capture verify --repair.*with the run's settings"):
            Ownership.take(disk.view(), identity("next"), ManualClock(), takeover=takeover, client=client)
    assert disk.view().names() == before
    # Who fences whoever it was, and says what clients go by, needs nothing of that file.
    Ownership.take(disk.view(), identity("next"), ManualClock(), takeover=True, client=CLIENTS)
    told = read_owner(disk.view())
    assert told is not None
    assert (told.epoch, told.client) == (2, CLIENTS)


def test_an_owner_whose_file_is_damaged_acknowledges_nothing_until_it_is_back() -> None:
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    owner = Ownership.take(disk.view(), identity(), ManualClock())
    disk.flip_bit(names.OWNER, 8 * disk.content(names.OWNER).index(b'"epoch":1') + 8 * 8)
    with pytest.raises(CaptureDirectoryError, match="cannot be read") as caught:
        owner.check()
    assert not isinstance(caught.value, Superseded)
    disk.flip_bit(names.OWNER, 8 * disk.content(names.OWNER).index(b'"epoch":0') + 8 * 8)
    owner.check()


def test_an_owner_file_of_another_version_tells_the_defaults() -> None:
    disk = FaultyDisk()
    run = create_or_adopt_run(disk.view())
    old = {"run": run.hex, "epoch": 1, "identity": {"actor_id": "a"}, "endpoint": None, "later": True, "crc32c": 0}
    old["crc32c"] = checksum(json.dumps(old, separators=(",", ":")).encode())
    disk.view().replace(names.OWNER, json.dumps(old, indent=1).encode(), fault_points.OWNER)
    told = read_owner(disk.view())
    assert told is not None
    assert told.client == ClientSettings()
