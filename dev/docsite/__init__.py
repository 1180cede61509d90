"""What mkdocs lacks for the site of docs/: links and anchors as on GitHub, pages made of the CRDs."""
