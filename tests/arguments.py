"""Arguments of releases, from flat numbers that a test changes one by one."""

from __future__ import annotations

from typing import Any

from kme_jax import Ledger, PrivacyBudget, Spending


def arguments(
    *,
    epsilon: Any = 1.0,
    delta: Any = 1e-6,
    ledger: Ledger | None = None,
    database: Any = "",
    allow_repeat: bool = False,
    **others: Any,
) -> dict[str, Any]:
    """Keyword arguments with a budget, and with a ledger if there is one."""
    options = {"budget": PrivacyBudget(epsilon, delta), **others}
    return options if ledger is None else options | {"spending": Spending(ledger, database, allow_repeat)}
