"""``python -m tests.attack``: attack the library and the command line, and print what held."""

from __future__ import annotations

import argparse
import sys

from tests.attack.driver import attacks, execute, table


def main() -> int:
    found = attacks()
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(found)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack (60)")
    parser.add_argument(
        "--cases", type=int, help="of each attack; default: as many as there is time"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(found))
    if unknown:
        parser.error(f"no attack {unknown[0]}; there are {', '.join(found)}")
    outcomes = []
    for name in asked.names or found:
        print(f"attacking: {name}", file=sys.stderr)
        limits = {"seed": asked.seed, "seconds": asked.seconds, "cases": asked.cases}
        outcomes.append(execute(name, found[name], **limits))
    print(table(outcomes))
    return 1 if any(each.failures for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
