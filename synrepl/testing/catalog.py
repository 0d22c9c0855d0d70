"""Describes everything that a database's schemas define, as text for comparison."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.storage.database import Transaction

_QUERIES = {
    "relation": """
        SELECT c.oid::regclass, c.relkind, c.relpersistence, coalesce(c.reloptions::text, ''),
               CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) ELSE '' END
        FROM pg_class c
        WHERE c.relnamespace::regnamespace::text = ANY(%s) AND c.relkind NOT IN ('i', 'I')
    """,
    "column": """
        SELECT a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod),
               a.attnotnull, a.attidentity, a.attgenerated, coalesce(pg_get_expr(d.adbin, d.adrelid), '')
        FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p', 'v', 'm', 'c')
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace::regnamespace::text = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
    """,
    "index": """
        SELECT i.indexrelid::regclass, pg_get_indexdef(i.indexrelid), i.indisvalid
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE c.relnamespace::regnamespace::text = ANY(%s)
    """,
    "constraint": """
        SELECT coalesce(nullif(conrelid, 0)::regclass::text, contypid::regtype::text), conname,
               pg_get_constraintdef(oid), convalidated
        FROM pg_constraint WHERE connamespace::regnamespace::text = ANY(%s)
    """,
    "sequence": """
        SELECT s.seqrelid::regclass, format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement,
               s.seqmin, s.seqmax, s.seqcache, s.seqcycle
        FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
        WHERE c.relnamespace::regnamespace::text = ANY(%s)
    """,
    "function": """
        SELECT p.oid::regprocedure, pg_get_functiondef(p.oid)
        FROM pg_proc p
        WHERE p.pronamespace::regnamespace::text = ANY(%s) AND p.prokind IN ('f', 'p', 'w')
    """,
    "trigger": """
        SELECT t.tgrelid::regclass, t.tgname, pg_get_triggerdef(t.oid), t.tgenabled
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace::regnamespace::text = ANY(%s) AND NOT t.tgisinternal
    """,
    "type": """
        SELECT t.oid::regtype, t.typtype,
               (SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder)
                FROM pg_enum WHERE enumtypid = t.oid)
        FROM pg_type t
        WHERE t.typnamespace::regnamespace::text = ANY(%s) AND t.typtype IN ('e', 'd')
    """,
    "comment": """
        SELECT pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description
        FROM pg_description d JOIN pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_class'::regclass
        WHERE c.relnamespace::regnamespace::text = ANY(%s)
    """,
}


def describe(txn: Transaction, schemas: Sequence[str] = ("public", "synrepl")) -> list[str]:
    """One line per object in ``schemas``, sorted: tables, columns with their defaults,
    indexes, constraints, sequences, functions with their source, triggers, types, comments.

    The order of columns is left out, because a migrated table may have a different one.
    """
    lines: list[str] = []
    for kind, query in _QUERIES.items():
        txn.execute(query, (list(schemas),))
        lines += (f"{kind}: {' | '.join(map(str, row))}" for row in txn.fetchall())
    return sorted(lines)
