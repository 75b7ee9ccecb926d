"""Print the ratios: `python -m benchmarks [turns] [handoffs] [wire] [store]`. Not a test: nothing fails."""

import importlib
import sys

from rich.console import Console
from rich.table import Table

NAMES = ("turns", "handoffs", "wire", "store")


def main(chosen: list[str]) -> None:
    """Run the benchmarks that were named, or all."""
    table = Table("what", "batonlog", "against", "ratio", "goal")
    for name in chosen or NAMES:
        for row in importlib.import_module(f"benchmarks.{name}").rows():
            colour = {True: "green", False: "red", None: "dim"}[row.met]
            ratio = f"[{colour}]{row.ratio:.2f}[/]" if row.met is not None else ""
            table.add_row(row.what, row.ours, row.theirs, ratio, row.wanted)
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
