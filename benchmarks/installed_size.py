"""Megabytes of longspan and of what it requires: `python benchmarks/installed_size.py SITE_PACKAGES`."""

import os
import re
import sys
from importlib import metadata

from packaging.requirements import Requirement

Node = tuple[str, str]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


INSTALLED = {plain(found.metadata["Name"]): found for found in metadata.distributions(path=[sys.argv[1]])}


def required(name: str, extra: str = "") -> set[Node]:
    """Installed packages that one requires, each with an extra or ""."""
    found = set()
    for line in INSTALLED[name].requires or []:
        wanted = Requirement(line)
        if plain(wanted.name) in INSTALLED and (wanted.marker is None or wanted.marker.evaluate({"extra": extra})):
            found |= {(plain(wanted.name), each) for each in ("", *wanted.extras)}
    return found


def closure(roots: set[Node]) -> set[str]:
    """Names of packages and of all that they require."""
    seen: set[Node] = set()
    left = set(roots)
    while left:
        node = left.pop()
        seen.add(node)
        left |= required(*node) - seen
    return {name for name, _ in seen}


def megabytes(names: set[str]) -> float:
    """Space of packages on disk, compiled bytecode included."""
    files = [found.locate_file(path) for found in map(INSTALLED.__getitem__, names) for path in found.files or []]
    return sum(os.lstat(path).st_blocks * 512 for path in map(str, files) if os.path.lexists(path)) / 2**20


if __name__ == "__main__":
    roots = required("longspan")
    every, torch = closure(roots), closure({("torch", "")})
    print(f"{megabytes(every):6,.0f} MB, {megabytes(every - torch):,.0f} without PyTorch and what it requires")
    print("By package, with what only this one requires:")
    sizes = {name: megabytes(every - closure({root for root in roots if root[0] != name})) for name, _ in roots}
    for name in sorted(sizes, key=lambda each: -sizes[each]):
        print(f"{max(sizes[name], megabytes({name})):8,.1f} {name}")
