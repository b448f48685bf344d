"""Which rows a frontier has, and each number of each (D2, D16)."""

from collections.abc import Iterator

from tests.compiler.plan_checker_split import Bench, close


def settled(bench: Bench) -> Bench:
    """The variant that explains the frontier; the first if none does."""
    variants = list(bench.variants())
    fitting = (variant for variant in variants if not any(check_frontier(variant)))
    return next(fitting, variants[0])


def check_frontier(bench: Bench) -> Iterator[str]:
    """Which rows there are, and each number of each."""
    chosen = bench.chosen
    if chosen is None:
        yield "no context fits, and yet there is a plan"
        return
    rows = bench.plan["frontier"]
    due = sorted({c for c in bench.contexts(chosen) if c <= bench.most and bench.best(c)})
    found = [row["context"] for row in rows]
    if found != due:
        yield f"frontier has rows for {found}, due {due}"
    marked = [row["context"] for row in rows if row["chosen"]]
    if marked != [chosen.context]:
        yield f"frontier marks {marked}, due {chosen.context}"
    for row in rows:
        fit = chosen if row["context"] == chosen.context else bench.best(row["context"])
        if fit is None:
            continue
        for name, number in bench.row(fit).items():
            if not close(row[name], number):
                yield f"frontier {row['context']}: {name} is {row[name]}, due {number}"
        if row["kv_dtype"] != bench.plan["kv_cache"]["dtype"]:
            yield f"frontier {row['context']}: kv_dtype is {row['kv_dtype']}"
