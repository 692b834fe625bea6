"""Compare the 96 filter counts that Table 3 prints for L0-AR(M) with tosses of a fair coin.

    python scripts/table3_coin.py

chi2 is the sum of (count - n/2)^2 / (n/4) over the layers of all rows. For fair coins it has 96
degrees of freedom. Shares of open filters are compared between the two strengths, the two
estimators, the two data sets and the three widths, by the z of two proportions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from l0arm.lab.recipes.paper import table_recipes

SIZES = [160] * 4 + [320] * 4 + [640] * 4  # filters of WRN-28-10, block by block


@dataclass(frozen=True)
class Row:
    """One row of Table 3: which filters of each layer are open."""

    method: str
    lam: float
    data: str
    open: tuple[int, ...]


def printed_rows() -> list[Row]:
    """The rows of L0-AR and L0-ARM."""
    ours = [r for r in table_recipes(3) if r.paper and r.method.name in ("l0-ar", "l0-arm")]
    return [
        Row(r.method.name, float(str(r.method.lam)), r.data.name, counts)
        for r in ours
        if r.paper and (counts := tuple(int(n) for n in r.paper.architecture.split("-")))
    ]


def chi_square(rows: Iterable[Row]) -> tuple[float, int]:
    """The statistic against a fair coin, and its degrees of freedom."""
    terms = [
        (k - n / 2) ** 2 / (n / 4) for row in rows for k, n in zip(row.open, SIZES, strict=True)
    ]
    return sum(terms), len(terms)


def tail(chi2: float, freedom: int) -> float:
    """P(X > chi2), by the normal approximation of the cube root (Wilson-Hilferty)."""
    spread = 2 / (9 * freedom)
    z = ((chi2 / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2


def open_of(rows: Iterable[Row], layers: Iterable[int] = range(12)) -> tuple[int, int]:
    """Open filters of these layers, and all of them."""
    rows, layers = list(rows), list(layers)
    return sum(r.open[n] for r in rows for n in layers), len(rows) * sum(SIZES[n] for n in layers)


def difference(one: tuple[int, int], other: tuple[int, int]) -> float:
    """z of the difference of two shares, with the pooled share in its standard error."""
    (k, n), (j, m) = one, other
    pooled = (k + j) / (n + m)
    return (k / n - j / m) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))


def main() -> None:
    """Print all figures."""
    rows = printed_rows()
    chi2, freedom = chi_square(rows)
    k, n = open_of(rows)
    print(f"{freedom} counts: chi2 {chi2:.1f}, p {tail(chi2, freedom):.2f}; open {k / n:.4f}")
    halves: dict[str, Callable[[Row], bool]] = {
        "0.001/N and 0.002/N": lambda row: row.lam == 0.001,
        "L0-AR and L0-ARM": lambda row: row.method == "l0-ar",
        "CIFAR-10 and CIFAR-100": lambda row: row.data == "cifar10",
    }
    for name, chosen in halves.items():
        first = open_of(row for row in rows if chosen(row))
        second = open_of(row for row in rows if not chosen(row))
        shares = f"{first[0] / first[1]:.4f} and {second[0] / second[1]:.4f}"
        print(f"{name}: {shares} open, z {difference(first, second):+.1f}")
    for stage in range(3):
        k, n = open_of(rows, range(4 * stage, 4 * stage + 4))
        print(
            f"layers of {SIZES[4 * stage]}: {k / n:.4f} open, z {(k - n / 2) / (n / 4) ** 0.5:+.1f}"
        )


if __name__ == "__main__":
    main()
