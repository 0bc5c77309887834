"""Delete models that were fetched. A process that runs one keeps it until it ends.

fastcore rm smollm2-135m
fastcore rm owner/name --yes
"""

import argparse
import sys

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="one that `fastcore list` shows, or its short name")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    from fastcore.errors import ModelNotFoundError
    from fastcore.sources.kept import kept_models, remove
    from fastcore.sources.short_names import hub_id

    kept = {model.name: model for model in kept_models()}
    names = {name if name in kept else hub_id(name): name for name in args.names}
    for key, name in names.items():  # all are known before the first goes
        if key not in kept:
            raise ModelNotFoundError(
                f"no model {name!r} was fetched; `fastcore list` shows {', '.join(kept) or 'none'}"
            )
    for name in names:
        model = kept[name]
        what = f"{name}, {model.bytes / 1e6:,.1f} MB in {model.folder}"
        if not args.yes:
            if not sys.stdin.isatty():
                raise ValueError(f"this deletes {what}; say --yes")
            if input(f"delete {what}? [y/N] ").strip().lower() not in ("y", "yes"):
                continue
        remove(model)
        print(f"deleted {what}")
    return 0
