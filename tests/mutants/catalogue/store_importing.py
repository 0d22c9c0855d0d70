"""Imports of a real Synapse's rooms into the store."""

from __future__ import annotations

from tests.mutants.mutant import PACKAGE, Mutant

RECORDED = "tests.services.rooms.test_importing.ImportingRecordedRooms."
CORRUPTED = "tests.services.rooms.test_importing.ImportingCorruptedRooms."
FOLLOWING = "tests.services.rooms.test_following_rooms.FollowingASource."
STORED = "tests.services.rooms.test_importing_into_the_store.ImportingIntoTheStore."
AUDITED = ("tests.services.rooms.test_audited",)

IMPORTING = (
    Mutant(
        "store-import-position",
        "services/rooms/importing/journal.py",
        "            RoomPosition(row.topological, row.stream),\n",
        "            BEFORE_ALL,\n",
        "an import that was interrupted goes on where it was",
        (RECORDED + "test_an_interrupted_import_goes_on_where_it_was",),
        PACKAGE,
    ),
    Mutant(
        "store-import-inherited",
        "services/rooms/importing/audit.py",
        "            *(differences.get(parent, ()) for parent in judged.prev_event_ids)\n",
        "            *(() for parent in judged.prev_event_ids)\n",
        "a difference is named only where it begins",
        (RECORDED + "test_a_wrong_resolution_of_an_old_release_is_named_where_it_begins",),
        PACKAGE,
    ),
    Mutant(
        "store-import-quarantined-parent",
        "services/rooms/importing/audit.py",
        "            each in self._auditor.not_imported for each in event.prev_event_ids\n",
        "            each in missing for each in event.prev_event_ids\n",
        "what follows an event in quarantine comes with its state",
        (CORRUPTED + "test_json_that_is_no_event",),
        PACKAGE,
    ),
    Mutant(
        "store-import-whole-groups",
        "services/rooms/importing/group_states.py",
        "GroupState(state, base.is_whole)",
        "GroupState(state)",
        "a state group that overlays a missing one is not compared",
        (CORRUPTED + "test_a_state_group_without_its_rows",),
        PACKAGE,
    ),
    Mutant(
        "store-import-hashes",
        "services/rooms/importing/received.py",
        "            event = event_of(kept, version)\n",
        "",
        "an event with another content is imported in its redacted form",
        (CORRUPTED + "test_a_changed_byte_of_the_content",),
        PACKAGE,
    ),
    Mutant(
        "store-import-causes",
        "services/rooms/importing/audited.py",
        "arrivals == sorted(arrivals) and _are_causes_first(events)",
        "arrivals == sorted(arrivals)",
        "causes are stored first, even if they arrived later",
        AUDITED,
        PACKAGE,
    ),
    Mutant(
        "store-import-late",
        "services/rooms/importing/sink.py",
        "each.position <= self._upto",
        "each.position < self._upto",
        "a retry stores what is older than the import as history",
        AUDITED,
        PACKAGE,
    ),
    Mutant(
        "store-import-settled",
        "services/rooms/importing/following.py",
        "max(position.events, settled.events)",
        "max(position.events, last.events)",
        "what commits late at the source is read",
        (FOLLOWING + "test_an_event_of_a_transaction_that_commits_late_is_imported",),
        PACKAGE,
    ),
    Mutant(
        "store-import-backfill",
        "services/rooms/importing/following.py",
        "            (BACKFILL, position.backfill, last.backfill),\n",
        "",
        "history that the source fetches later is followed",
        (FOLLOWING + "test_backfilled_events_are_imported",),
        PACKAGE,
    ),
    Mutant(
        "store-import-soft-failed",
        "services/rooms/importing/persisting.py",
        "SOFT_FAILED_AT_SOURCE if imported.soft_failed else None",
        "None",
        "what the source soft-failed is soft-failed",
        (STORED + "test_events_that_the_source_soft_failed_are_not_shown",),
        PACKAGE,
    ),
)
