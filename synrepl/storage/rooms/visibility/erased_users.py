"""Users whose accounts were erased: others get the redacted form of what they sent."""

from __future__ import annotations

from collections.abc import Collection

from synrepl.storage.database import Transaction


def is_erased_sql(user: str) -> str:
    """Whether a user was erased, in SQL.

    :param user: the user's ID, as an expression
    """
    return f"EXISTS (SELECT FROM synrepl._erased_users u WHERE u.user_id = {user})"


def erased_among(txn: Transaction, users: Collection[str]) -> frozenset[str]:
    """Those of some users that were erased."""
    txn.execute(
        "SELECT user_id FROM synrepl._erased_users WHERE user_id = ANY (%s::text[])",
        (list(users),),
    )
    return frozenset(str(user) for (user,) in txn.fetchall())
