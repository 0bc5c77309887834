"""List the models that were fetched: the name that opens each, its size, and where it lies.

fastcore list
fastcore list --json
fastcore list --known   # the names that `fastcore pull` and every --model take, and where each comes from
"""

import argparse
import json
import sys

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="a list of {name, folder, bytes, is_of_hub}")
    parser.add_argument("--known", action="store_true", help="list the names there are; as JSON, an object of them")


def run(args: argparse.Namespace) -> int:
    from fastcore.sources.kept import kept_models
    from fastcore.sources.resolve import known_models

    if args.known:
        known = known_models()
        width = max(map(len, known))
        lines = [f"{name:{width}}  {source}" for name, source in known.items()]
        print(json.dumps(known, indent=2) if args.json else "\n".join(lines))
        return 0
    models = kept_models()
    if args.json:
        rows = [{**vars(model), "folder": str(model.folder)} for model in models]
        print(json.dumps(rows, indent=2))
        return 0
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        print(f"{model.name:{width}}  {model.bytes / 1e6:9,.1f} MB  {model.folder}")
    if not models:
        print("no model was fetched yet; `fastcore pull` does", file=sys.stderr)
    return 0
