-- A stream x has the objects _x_pkey and _x_seq. The tables of rooms leave such names to streams, so
-- that a stream may be called "rooms" or "redactions", as it might have been before there were rooms.
DO $$
DECLARE
    found record;
    tables regclass[] := ARRAY[
        'synrepl._rooms', 'synrepl._event_types', 'synrepl._room_keys', 'synrepl._room_events',
        'synrepl._room_event_json', 'synrepl._state_groups', 'synrepl._state_line',
        'synrepl._state_lines', 'synrepl._state_group_lines', 'synrepl._current_state',
        'synrepl._memberships', 'synrepl._room_heads', 'synrepl._forward_extremities',
        'synrepl._backward_extremities', 'synrepl._waiting_events', 'synrepl._redactions',
        'synrepl._room_import_sources', 'synrepl._room_imports', 'synrepl._room_import_findings',
        'synrepl._room_import_quarantine', 'synrepl._branch_memberships', 'synrepl._erased_users'
    ]::regclass[];
BEGIN
    FOR found IN
        SELECT i.indexrelid::regclass AS relation, c.relname FROM pg_index i
            JOIN pg_class c ON c.oid = i.indexrelid
            WHERE i.indrelid = ANY (tables) AND c.relname ~ '_pkey\d*$'
    LOOP
        EXECUTE format(
            'ALTER INDEX %s RENAME TO %I',
            found.relation, regexp_replace(found.relname, '_pkey\d*$', '_key')
        );
    END LOOP;
    FOR found IN
        SELECT c.oid::regclass AS relation, c.relname FROM pg_depend d
            JOIN pg_class c ON c.oid = d.objid
            WHERE d.classid = 'pg_class'::regclass AND d.refobjid = ANY (tables)
            AND c.relkind = 'S' AND c.relname ~ '_seq\d*$'
    LOOP
        EXECUTE format(
            'ALTER SEQUENCE %s RENAME TO %I',
            found.relation, regexp_replace(found.relname, '_seq\d*$', '_numbers')
        );
    END LOOP;
END
$$;
