"""The files of a release that are text: notes, the plugin's manifest, sums, provenance. Pure."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from release.checks import Release

Json = dict[str, Any]

SUMS: Final = "SHA256SUMS"
IMAGE_SUMS: Final = "SHA256SUMS.images"
PROVENANCE: Final = "provenance.json"
# The type of what `make release` does, described in CONTRIBUTING.md.
BUILD_TYPE: Final = "https://caretaker.dev/make-release/v1"
SYSTEMS: Final = ("linux", "darwin")
_LINK: Final = re.compile(r"\]\((?!\w+:|#)")
_IMAGE: Final = re.compile(r"^( +)repository: registry\.example\.com/caretaker/(\w+)\n", re.MULTILINE)


def notes(release: Release, section: str) -> str:
    """The CHANGELOG's section, with links that hold outside of the checkout."""
    at = f"{release.repository}/blob/v{release.version}"
    linked = _LINK.sub(f"]({at}/", section)
    return (
        f"# caretaker {release.version}\n\n{linked}\n\n"
        f"Compare what you download: `sha256sum --check --ignore-missing {SUMS}`. "
        f"[Install and verify]({at}/docs/install.md#from-a-release).\n"
    )


def named(text: str, release: Release) -> str:
    """Text of the checkout, in which repository and registry are example.com's, with those of the release."""
    found = text.replace("https://example.com/caretaker", release.repository)
    return found.replace("registry.example.com/caretaker", release.registry)


def values(text: str, registry: str, digests: Mapping[str, str]) -> str:
    """The chart's values.yaml with the release's images: by digest where there is one, else by the chart's
    version. Raises ValueError where an image of `digests` is not in it."""
    found: set[str] = set()

    def image_of(match: re.Match[str]) -> str:
        indent, image = match.groups()
        found.add(image)
        return f"{indent}repository: {registry}/{image}\n"

    made = _IMAGE.sub(image_of, text)
    for image, digest in digests.items():
        head, line, rest = made.partition(f"repository: {registry}/{image}\n")
        before, empty, after = rest.partition('digest: ""\n')
        if image not in found or not empty:
            raise ValueError(f"values.yaml has no image {image} whose digest is to be set")
        made = f'{head}{line}{before}digest: "{digest}"\n{after}'
    return made


def krew(release: Release, archive: str, digest: str) -> str:
    """The manifest of the plugin in `archive`, whose SHA-256 is `digest`, as krew reads it."""
    body = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "caretaker"},
        "spec": {
            "version": f"v{release.version}",
            "homepage": release.repository,
            "shortDescription": "Plan, show and steer caretaker's resources",
            "description": "The commands of caretaker, an operator for DaemonTasks, S3AggregatedRefreshes\n"
            "and IMDSPolicies: plan, status, rerun, resume, logs.\n",
            "caveats": "Needs uv (https://docs.astral.sh/uv/). The first call fetches its Python packages,\n"
            "in the versions of caretaker's lock.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": system}},
                    "uri": f"{release.downloads}/{archive}",
                    "sha256": digest,
                    "bin": "kubectl-caretaker",
                }
                for system in SYSTEMS
            ],
        },
    }
    return yaml.safe_dump(body, sort_keys=False)


def sums(digests: Mapping[str, str]) -> dict[str, str]:
    """What `sha256sum --check` reads, by name. Who downloads files has no folders: SUMS is of what is in none
    of them, and IMAGE_SUMS, which is among that, of all else."""
    inside = {name for name in digests if "/" in name}
    made = {IMAGE_SUMS: _listed({name: digests[name] for name in inside})} if inside else {}
    own = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in made.items()}
    return made | {SUMS: _listed({name: digests[name] for name in digests.keys() - inside} | own)}


def _listed(digests: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def provenance(
    release: Release,
    digests: Mapping[str, str],
    materials: Sequence[Json],
    images: str,
    tools: Mapping[str, str],
) -> str:
    """An in-toto statement of the files (name -> SHA-256) with SLSA's provenance, not signed. No times, so
    that the same commit gives the same bytes. `materials`: ResourceDescriptors beside the commit; `images`:
    what they were built on."""
    source = {"uri": f"git+{release.repository}", "digest": {"gitCommit": release.commit}}
    parameters = {
        "VERSION": release.version,
        "REPOSITORY": release.repository,
        "REGISTRY": release.registry,
        "IMAGES": images,
    }
    body = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": parameters,
                "internalParameters": {"tools": dict(tools)},
                "resolvedDependencies": [source, *materials],
            },
            "runDetails": {"builder": {"id": release.builder}},
        },
    }
    return json.dumps(body, indent=1) + "\n"
