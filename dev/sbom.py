"""A software bill of materials of an environment, as CycloneDX 1.6 JSON.

Inputs: the distributions that are installed beside the Python that runs this, or in --path. Standard library
alone, no network, so that a Dockerfile can run it: `python dev/sbom.py --output FILE`. The same content gives
the same bytes: no time, and a serial number that follows from what is listed. With --part PACKAGE it lists
one package of caretaker's distribution, taken out of it: one that needs the standard library alone.
"""

import argparse
import json
import re
import sys
import uuid
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

MAIN: Final = "caretaker"
# Of PEP 508: `name[extra]>=1 ; marker`.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Only needed to install, or beside a Python from the start.
_LEFT_OUT: Final = frozenset(("pip", "setuptools", "wheel"))


def normal(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def purl(name: str, version: str) -> str:
    """A package URL, which is also the component's reference."""
    return f"pkg:pypi/{normal(name)}@{version}"


def licences(about: metadata.PackageMetadata) -> list[dict[str, Any]]:
    """License-Expression (PEP 639), else classifiers, else the old field where it is a word."""
    fields = about.json
    expression = fields.get("license_expression")
    if expression:
        return [{"expression": expression}]
    classifiers = fields.get("classifier") or []
    named = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License :: OSI")]
    old = str(fields.get("license") or "")
    return [{"license": {"name": name}} for name in named or ([old] if old and "\n" not in old else [])]


def component(found: metadata.Distribution) -> dict[str, Any]:
    """One distribution."""
    about = found.metadata.json
    made: dict[str, Any] = {
        "type": "application" if normal(str(about["name"])) == MAIN else "library",
        "bom-ref": purl(str(about["name"]), found.version),
        "name": normal(str(about["name"])),
        "version": found.version,
        "purl": purl(str(about["name"]), found.version),
    }
    if about.get("summary"):
        made["description"] = about["summary"]
    if told := licences(found.metadata):
        made["licenses"] = told
    return made


def bill(distributions: Iterable[metadata.Distribution]) -> dict[str, Any]:
    """The document. Raises ValueError when caretaker is not among them."""
    known = _installed(distributions)
    kept = {name: one for name, one in sorted(known.items()) if name not in _LEFT_OUT}
    components = {name: component(one) for name, one in kept.items()}
    references = {name: made["bom-ref"] for name, made in components.items()}
    needs = {
        name: sorted({references[other] for other in _required(one) if other in references})
        for name, one in kept.items()
    }
    needed = [{"ref": references[name], "dependsOn": ours} for name, ours in needs.items()]
    return _document(components.pop(MAIN), list(components.values()), needed)


def bill_of_part(distributions: Iterable[metadata.Distribution], package: str) -> dict[str, Any]:
    """The document of one package of caretaker's alone. Raises ValueError when that is not installed, has no
    such package, or the package's distribution says nothing of its files."""
    main = _installed(distributions)[MAIN]
    files = [file for file in main.files or () if file.parts[0] == package and file.suffix == ".py"]
    if not files:
        raise ValueError(f"{MAIN} has no package {package} here")
    whole = component(main)
    whole.pop("description", None)  # which is the operator's
    part = {**whole, "name": normal(package), "purl": f"{whole['purl']}#{package}"}
    part["bom-ref"] = part["purl"]
    return _document(part, [], [{"ref": part["bom-ref"], "dependsOn": []}])


def _installed(distributions: Iterable[metadata.Distribution]) -> dict[str, metadata.Distribution]:
    known = {normal(str(one.metadata.json["name"])): one for one in distributions}
    if MAIN not in known:
        raise ValueError(f"{MAIN} is not installed here: install it first")
    return known


def _document(
    main: dict[str, Any], components: list[dict[str, Any]], needed: list[dict[str, Any]]
) -> dict[str, Any]:
    listed = "\n".join(one["ref"] for one in needed)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, listed)}",
        "version": 1,
        "metadata": {"component": main},
        "components": components,
        "dependencies": needed,
    }


def _required(found: metadata.Distribution) -> Iterable[str]:
    """Names that it asks for, those of extras as well: what is not installed is left out by the caller."""
    names = (_NAME.match(text) for text in found.requires or ())
    return {normal(name[0]) for name in names if name}


def main() -> int:
    """Exit code 1 where caretaker is not installed."""
    parser = argparse.ArgumentParser(description="write a CycloneDX bill of materials")
    parser.add_argument("--path", type=Path, help="a site-packages folder; default: this Python's own")
    parser.add_argument("--part", help="a package of caretaker's, which stands alone: caretaker_probe")
    parser.add_argument("--output", type=Path, help="default: stdout")
    args = parser.parse_args()
    path = [str(args.path)] if args.path else sys.path
    try:
        found = metadata.distributions(path=path)
        made = bill_of_part(found, args.part) if args.part else bill(found)
        text = json.dumps(made, indent=1) + "\n"
    except ValueError as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
