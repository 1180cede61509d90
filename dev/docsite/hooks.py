"""mkdocs calls these while it builds the site (mkdocs.yml)."""

from pathlib import Path
from typing import Any, Final

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docsite import fields
from docsite.pages import Anchors, Checkout

_ROOT: Final = Path(__file__).resolve().parents[2]
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Pages of the site that are not in docs/.
_OUTSIDE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "helm/caretaker/README.md": "chart.md",
}
_ANCHORS: Final = Anchors()


def _reference(crd: dict[str, Any]) -> str:
    return f"reference/{crd['spec']['names']['kind'].lower()}.md"


_CRDS: Final = {
    file.relative_to(_ROOT).as_posix(): yaml.load(file.read_text(), _LOADER)  # noqa: S506
    for file in sorted((_ROOT / "crds").glob("*.yaml"))
}
_PAGES: Final = {**_OUTSIDE, **{file: _reference(crd) for file, crd in _CRDS.items()}}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as on GitHub."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = _ANCHORS
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages from outside docs/, and those of the CRDs."""
    for file, uri in _OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(_ROOT / file)))
    for file, crd in _CRDS.items():
        guide = f"../spec/{crd['spec']['names']['kind'].lower()}.md"
        try:
            text = fields.page(crd, guide, f"{_url(config)}/{file}")
        except ValueError as error:
            raise PluginError(f"{file}: {error}; dev/docsite/fields.py tells what each means") from error
        files.append(File.generated(config, _reference(crd), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Links that lead to pages of the site, or to the repository."""
    _ANCHORS.begin()
    if page.file.abs_src_path is None:
        return markdown
    source = Path(page.file.abs_src_path).relative_to(_ROOT).as_posix()
    return Checkout(_ROOT, _PAGES, config.extra["repository"], config.extra["revision"]).on_site(
        markdown, source
    )


def _url(config: MkDocsConfig) -> str:
    return f"{config.extra['repository']}/blob/{config.extra['revision']}"
