"""Invented tables whose columns are bound by constraints, and constraints of tables of the benchmark.

The constraints of the benchmark's tables come from their documentation, not from their rows. So some private rows break
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kme_jax import Categorical, Datetime, Numeric, Ordinal, Schema
from kme_jax.table.constraints import Constraint, Forbidden, Implies, Lookup, OneOf, Order, Sum


class Invented(NamedTuple):
    """An invented table.

    Attributes:
      rows: its rows.
      schema: of its columns, with constraints.
    """

    rows: pa.Table
    schema: Schema


def trips(num_rows: int, seed: int) -> Invented:
    """Rides in taxis: when they begin and end, where, and what is paid."""
    rng = np.random.default_rng([seed, 1])
    boroughs = {"harbour": "north", "airport": "north", "station": "centre", "market": "centre", "hills": "south"}
    zone = rng.choice(list(boroughs), num_rows, p=[0.1, 0.15, 0.35, 0.3, 0.1])
    busy = np.tile([1.0, 1.0, 1.0, 1.0, 1.3, 1.5, 0.7], 51)  # from Monday to Sunday
    day = rng.choice(len(busy), num_rows, p=busy / busy.sum())
    hour = np.where(rng.random(num_rows) < 0.6, rng.normal(9, 1.5, num_rows), rng.normal(18, 2.5, num_rows))
    begin = np.datetime64("2025-01-06T00:00") + 1440 * day + np.clip(60 * hour, 0, 1439).astype(int)
    minutes = np.exp(rng.normal(2.3, 0.5, num_rows) + 0.9 * (zone == "airport")).astype(int) + 1
    kilometres = np.round(minutes * np.exp(rng.normal(-1.1, 0.3, num_rows)), 1)
    fare = np.round(np.clip(2.8 + 1.7 * kilometres + 0.2 * minutes, 0, 400), 2)
    by_card = rng.random(num_rows) < 0.7
    tip = np.where(by_card, np.round(fare * rng.choice([0, 0.1, 0.15, 0.2], num_rows), 2), 0.0)
    rows = pa.table(
        {
            "zone": zone,
            "borough": [boroughs[name] for name in zone],
            "begin": begin.astype("datetime64[s]"),
            "end": (begin + minutes).astype("datetime64[s]"),
            "kilometres": np.clip(kilometres, 0, 200),
            "fare": fare,
            "tip": np.clip(tip, 0, 100),
            "paid": np.round(fare + np.clip(tip, 0, 100), 2),
            "by": np.where(by_card, "card", "cash"),
        }
    )
    columns = (
        Categorical("zone", tuple(boroughs)),
        Categorical("borough", ("north", "centre", "south")),
        Datetime("begin", "2025-01-01", "2025-12-31T23:59", "minute", parts=True),
        Datetime("end", "2025-01-01", "2026-01-07T23:59", "minute"),
        Numeric("kilometres", 0, 200, step=0.1, scale="log"),
        Numeric("fare", 0, 400, step=0.01),
        Numeric("tip", 0, 100, step=0.01),
        Numeric("paid", 0, 500, step=0.01),
        Categorical("by", ("card", "cash")),
    )
    constraints = (
        Lookup("zone", "borough", boroughs),
        Order("begin", "end", largest_gap=1440),
        Sum(("fare", "tip"), "paid"),
        Implies("by=cash", "tip=0"),
    )
    return Invented(rows, Schema(columns, constraints=constraints))


def households(num_rows: int, seed: int) -> Invented:
    """Households: who lives there, and how they heat."""
    rng = np.random.default_rng([seed, 2])
    age = np.clip(np.round(rng.normal(52, 17, num_rows)), 18, 99)
    adults = 1 + (rng.random(num_rows) < 0.55) + (rng.random(num_rows) < 0.08)
    likely = np.exp(-(((age - 40) / 12) ** 2))
    children = rng.binomial(4, 0.45 * likely)
    youngest = np.where(children > 0, np.clip(np.round(rng.normal(age - 33, 4)), 0, 17), np.nan)
    eldest = np.where(children > 0, np.clip(youngest + rng.poisson(3.0, num_rows) * (children > 1), 0, 17), np.nan)
    owner = rng.random(num_rows) < 1 / (1 + np.exp(-(age - 50) / 12))
    rent = np.where(owner, np.nan, np.round(np.exp(rng.normal(6.5, 0.35, num_rows) + 0.1 * adults)))
    heating = rng.choice(3, num_rows, p=[0.55, 0.3, 0.15])
    retired = rng.random(num_rows) < np.where(age >= 63, 0.85, 0.02)
    retired &= age >= 50
    rows = pa.table(
        {
            "age": age.astype(int),
            "adults": adults,
            "children": children,
            "people": adults + children,
            "youngest": pa.array(youngest, from_pandas=True),
            "eldest": pa.array(eldest, from_pandas=True),
            "owner": np.where(owner, "yes", "no"),
            "rent": pa.array(np.clip(rent, 0, 5000), from_pandas=True),
            "gas": np.where(heating == 0, "yes", "no"),
            "oil": np.where(heating == 1, "yes", "no"),
            "wood": np.where(heating == 2, "yes", "no"),
            "retired": np.where(retired, "yes", "no"),
        }
    )
    words = ("no", "yes")
    columns = (
        Numeric("age", 18, 99, integer=True),
        Numeric("adults", 1, 4, integer=True),
        Numeric("children", 0, 8, integer=True),
        Numeric("people", 1, 12, integer=True),
        Numeric("youngest", 0, 17, integer=True, nullable=True),
        Numeric("eldest", 0, 17, integer=True, nullable=True),
        Categorical("owner", words),
        Numeric("rent", 0, 5000, integer=True, nullable=True),
        *(Categorical(name, words) for name in ("gas", "oil", "wood", "retired")),
    )
    constraints = (
        Sum(("adults", "children"), "people"),
        Implies("children=0", "youngest=missing", both_ways=True),
        Order("youngest", "eldest"),
        Implies("children=0", "eldest - youngest=missing", both_ways=True),
        Implies("owner=yes", "rent=missing", both_ways=True),
        OneOf(("gas=yes", "oil=yes", "wood=yes"), required=True),
        Forbidden("age<50 and retired=yes"),
    )
    return Invented(rows, Schema(columns, constraints=constraints))


def firms(num_rows: int, seed: int) -> Invented:
    """Firms: their branch, staff and sales."""
    rng = np.random.default_rng([seed, 3])
    sections = {code: code[0] for code in ("A10", "A20", "B10", "B20", "C10", "C20", "C30", "D10")}
    which = rng.choice(8, num_rows, p=[0.25, 0.2, 0.15, 0.12, 0.1, 0.08, 0.06, 0.04])
    branch = np.array(list(sections))[which]
    staff = np.clip(np.round(np.exp(rng.normal(2.2 + 0.15 * which, 0.8))), 1, 2000)
    sales = np.round(np.exp(4 + 0.95 * np.log(staff) + 0.08 * which + rng.normal(0, 0.5, num_rows)))
    exports = rng.random(num_rows) < 1 / (1 + np.exp(2 - 0.5 * np.log(staff)))
    abroad = np.where(exports, np.round(sales * rng.beta(2, 4, num_rows)), 0)
    home = np.clip(sales, 0, 100_000) - np.clip(abroad, 0, 50_000)
    size = np.digitize(staff, [10, 50])
    opened = rng.integers(0, 12_000, num_rows)
    inspected = np.minimum(opened + rng.exponential(700, num_rows).astype(int) + 1, 13_800)
    rows = pa.table(
        {
            "branch": branch,
            "section": [sections[code] for code in branch],
            "size": np.array(["small", "medium", "large"])[size],
            "staff": staff.astype(int),
            "home": np.clip(home, 0, 100_000).astype(int),
            "abroad": np.clip(abroad, 0, 50_000).astype(int),
            "sales": (np.clip(home, 0, 100_000) + np.clip(abroad, 0, 50_000)).astype(int),
            "exports": np.where(abroad > 0, "yes", "no"),
            "opened": np.datetime64("1988-01-01") + opened,
            "inspected": np.datetime64("1988-01-01") + inspected,
        }
    )
    columns = (
        Categorical("branch", tuple(sections)),
        Categorical("section", tuple("ABCD")),
        Ordinal("size", ("small", "medium", "large")),
        Numeric("staff", 1, 2000, integer=True, scale="log"),
        Numeric("home", 0, 100_000, integer=True, scale="log"),
        Numeric("abroad", 0, 50_000, integer=True, scale="log"),
        Numeric("sales", 0, 150_000, integer=True, scale="log"),
        Categorical("exports", ("no", "yes")),
        Datetime("opened", "1988-01-01", "2025-12-31"),
        Datetime("inspected", "1988-01-01", "2025-12-31"),
    )
    constraints = (
        Lookup("branch", "section", sections),
        Sum(("home", "abroad"), "sales"),
        Implies("exports=no", "abroad=0", both_ways=True),
        Implies("staff<10", "size=small", both_ways=True),
        Forbidden("staff>=50 and size=medium"),
        Forbidden("staff<50 and size=large"),
        Order("opened", "inspected"),
    )
    return Invented(rows, Schema(columns, constraints=constraints))


INVENTED: dict[str, Callable[[int, int], Invented]] = {"trips": trips, "households": households, "firms": firms}

_NOT_ASKED = "Not in universe"
_INDUSTRY = "Not in universe or children"
DOCUMENTED: dict[str, tuple[Constraint, ...]] = {
    # The Current Population Survey asks persons of 15 and older about work. The names of categories say who is a child.
    "census": (
        Implies("age<15", "education=Children", both_ways=True),
        Implies("age<15", f"class of worker={_NOT_ASKED}"),
        Implies("age<15", "marital stat=Never married"),
        Implies("age<15", "full or part time employment stat=Children or Armed Forces"),
        Implies("age<15", "weeks worked in year=0"),
        Implies("age<15", "wage per hour=0"),
        Implies(f"class of worker={_NOT_ASKED}", f"major industry code={_INDUSTRY}"),
        Forbidden("age>=18 and detailed household summary in household=Child under 18 never married"),
    ),
    # covtype.info: 4 binary columns say the wilderness area, and 40 the type of the soil.
    "covtype": (
        OneOf(tuple(f"Wilderness_Area{i}=1" for i in range(1, 5)), required=True),
        OneOf(tuple(f"Soil_Type{i}=1" for i in range(1, 41)), required=True),
    ),
}
