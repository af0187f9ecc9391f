"""Where a checkpoint lies: a directory, or a repository of the Hugging Face Hub (extra `hub`).

Downloads can be interrupted and go on; what is in the cache is not downloaded again, and is enough
without a network.
"""

from pathlib import Path

from qkvflow.errors import UserError, one_line

PREFIX = "hf:"
NEEDED = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "model*.safetensors",
    "model.safetensors.index.json",
]


def local_copy(source: str, revision: str | None = None) -> Path:
    """The directory of `hf:owner/name`, or of a path."""
    if not source.startswith(PREFIX):
        if revision is not None:
            raise UserError("--revision is for hf:owner/name; a directory has none")
        if not Path(source).is_dir():
            raise UserError(
                f"{source} is not a directory; give a Hugging Face directory or hf:owner/name"
            )
        return Path(source)
    hub = require_hub()
    name = source.removeprefix(PREFIX)
    try:
        found = hub.snapshot_download(name, revision=revision, allow_patterns=NEEDED)
    except Exception as error:  # Of many kinds: the Hub's, the network's, the disk's.
        where = name if revision is None else f"{name} at {revision}"
        raise UserError(
            f"cannot download {where}: {one_line(error, 240)}; check its name, the network and "
            "your rights ('hf auth login')"
        ) from None
    return Path(found)


def require_hub():
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(
            "hf: names need huggingface_hub; install it with pip install 'qkvflow[hub]'"
        ) from None
    return huggingface_hub
